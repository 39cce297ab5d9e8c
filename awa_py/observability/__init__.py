"""What operators see: metrics, logs, traces, health checks, job history and explanations."""
