"""The HTTP port of a process: metrics and health."""
