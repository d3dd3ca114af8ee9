"""Four Grafana dashboards, built from the metric catalogue and the alert rules."""
