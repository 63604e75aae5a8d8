"""Where firings go: shown to Prometheus, pushed to Alertmanager, noted in Grafana."""
