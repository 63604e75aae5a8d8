"""Grafana dashboards: queries, panels made of them, and the JSON that both are built into."""
