"""Composite rules: language, streaming engine, compiler to Prometheus, the way to Alertmanager."""
