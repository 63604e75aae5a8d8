"""Rate limits: token buckets of requests and of LLM tokens, in this process or shared through Redis."""
