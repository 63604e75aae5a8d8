"""Gates in the kernel: new connections to a protected service are refused where they arrive."""
