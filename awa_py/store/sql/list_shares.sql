-- What the leader splits: each queue with max_workers, each worker that may have a share of it, the worker's slots for
-- the queue (capacity), and the share that it has. Shares without max_workers are to be deleted.
-- $1 how long a worker may be silent and keep its share
SELECT queue, worker_id, entitled.max_workers, entitled.capacity, given.slots
FROM (SELECT q.name AS queue, w.id AS worker_id, q.max_workers,
             least(w.concurrency, coalesce(w.limits[array_position(w.queues, q.name)], w.concurrency)) AS capacity
      FROM awa.queues q JOIN awa.workers w ON q.name = ANY (w.queues)
      WHERE q.max_workers IS NOT NULL
        AND w.heartbeat_at > now() - $1::interval AND NOT w.quiet AND NOT w.stopping) AS entitled
FULL JOIN awa.slots given USING (queue, worker_id)
ORDER BY queue, worker_id
