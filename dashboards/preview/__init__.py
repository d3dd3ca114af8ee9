"""Pictures of the dashboards, drawn from live query results without Grafana: the same panels in the same grid."""
