"""Ways to enqueue: one job, a group commit of concurrent enqueues, or many jobs by COPY."""
