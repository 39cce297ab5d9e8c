-- Counts running jobs that were claimed before their queue had max_workers.
-- $1 the queue, NULL: all · $2 how many at the most, of each queue
SELECT coalesce(sum(awa.count_in(name, $2)), 0)
FROM awa.queues
WHERE max_workers IS NOT NULL AND ($1::text IS NULL OR name = $1)
