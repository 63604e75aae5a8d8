"""The streaming engine: columns in, firings out."""
