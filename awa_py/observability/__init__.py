"""What operators see: metrics, logs, traces, health, job history, and explanations."""
