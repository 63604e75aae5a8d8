"""What goes beside the bridge: dashboards, rules, routes and configurations of Grafana and its like."""
