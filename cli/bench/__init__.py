"""`awa bench`: the speed of the queue on this machine, and the cost of each job for the server."""
