"""otel_bridge: why an LLM request was slow, and action before a person could act."""

__version__ = "0.1.0"
