"""An OpenAI-compatible server around llama.cpp's own engine; runs in an environment of its own."""
