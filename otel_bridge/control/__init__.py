"""The breaker: its state, what trips it, and what it does at gateways and in the kernel."""
