"""`awa demo`: real worker processes, sample jobs, and a live display of what the database contains."""
