-- What the leader splits: each queue with max_workers and each worker that may have a part of it, with how many of its jobs
-- the worker runs at the most; and the parts that were given. A part without max_workers is nobody's any more.
-- $1 how long a worker may be silent and have a share
SELECT queue, worker_id, entitled.max_workers, entitled.capacity, given.slots
FROM (SELECT q.name AS queue, w.id AS worker_id, q.max_workers,
             least(w.concurrency, coalesce(w.limits[array_position(w.queues, q.name)], w.concurrency)) AS capacity
      FROM awa.queues q JOIN awa.workers w ON q.name = ANY (w.queues)
      WHERE q.max_workers IS NOT NULL
        AND w.heartbeat_at > now() - $1::interval AND NOT w.quiet AND NOT w.stopping) AS entitled
FULL JOIN awa.slots given USING (queue, worker_id)
ORDER BY queue, worker_id
