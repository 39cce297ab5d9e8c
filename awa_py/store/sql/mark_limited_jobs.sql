-- Counts running jobs that were claimed before their queue had max_workers. How many there were.
-- $1 the queue, NULL: all · $2 how many at the most, of each queue
-- Claims of a queue wait only where there is something to count; and always in one order, so that two callers cannot
-- wait for each other.
SELECT coalesce(sum(awa.mark_running_jobs(name, $2)), 0)
FROM (SELECT name
      FROM awa.queues
      WHERE max_workers IS NOT NULL AND ($1::text IS NULL OR name = $1)
        AND name = ANY (ARRAY(SELECT DISTINCT queue FROM awa.running WHERE NOT limited))
      ORDER BY name
      OFFSET 0) AS uncounted
