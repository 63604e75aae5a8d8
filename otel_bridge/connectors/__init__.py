"""What turns one signal into another: spans into metrics."""
