"""`make demo`: a real engine, real clients, the real Collector, and the bridge between its pipelines."""
