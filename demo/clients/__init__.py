"""The public `openai` client under public instrumentations, each in an environment of its own."""
