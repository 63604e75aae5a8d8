"""Rules as Prometheus evaluates them: compiled, written to files, with tests for promtool."""
