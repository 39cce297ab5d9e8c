"""What a process tells over HTTP: its metrics, and how it is."""
