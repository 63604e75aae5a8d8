"""What dashboards ask Prometheus, one module a subject; names of metrics and labels come from the catalog."""
