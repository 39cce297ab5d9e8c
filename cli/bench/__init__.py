"""`awa bench`: workloads on a schema that goes away, what they took, and what they cost the server."""
