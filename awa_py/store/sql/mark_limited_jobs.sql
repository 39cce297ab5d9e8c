-- Mark running jobs that were claimed before their queue had max_workers, so that they count. Returns how many.
-- $1 the queue, NULL: all · $2 at most this many jobs per queue
--
-- Claims of a queue wait only if it has jobs to mark. Queues are locked in one order, so that two callers cannot
-- deadlock.
SELECT coalesce(sum(awa.mark_running_jobs(name, $2)), 0)
FROM (SELECT name
      FROM awa.queues
      WHERE max_workers IS NOT NULL AND ($1::text IS NULL OR name = $1)
        AND name = ANY (ARRAY(SELECT DISTINCT queue FROM awa.running WHERE NOT limited))
      ORDER BY name
      OFFSET 0) AS unmarked
