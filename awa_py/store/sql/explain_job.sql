-- What decides whether a job can run now, and which worker runs it.
-- $1 id · $2 staleness: workers that were silent for longer are dead
SELECT j.id, j.kind, j.queue, j.state, awa.readable_time(j.run_at) AS run_at, j.run_at > now() AS future,
       extract(epoch FROM awa.readable_time(j.run_at) - now())::float8 AS due_s, j.attempt, j.max_attempts,
       coalesce(q.paused AND q.paused_until > now() IS NOT FALSE, false) AS paused, q.paused_until,
       CASE WHEN q.throttled_until > now() THEN q.throttled_until END AS throttled_until, q.throttle_reason,
       q.max_workers, CASE WHEN q.max_workers IS NOT NULL
                           THEN (SELECT count(*) FROM awa.running_of_queue(j.queue))
                           ELSE 0 END AS queue_running,
       q.rate_jobs, q.rate_period,
       owner.hostname || ':' || owner.pid AS owner, extract(epoch FROM now() - owner.heartbeat_at)::float8 AS owner_silent_s,
       (SELECT count(*) FROM awa.workers w WHERE w.heartbeat_at > now() - $2::interval) AS workers,
       (SELECT count(*) FROM awa.workers w
        WHERE w.heartbeat_at > now() - $2::interval AND j.queue = ANY (w.queues)) AS workers_of_queue,
       (SELECT count(*) FROM awa.workers w
        WHERE w.heartbeat_at > now() - $2::interval AND j.queue = ANY (w.queues) AND j.kind = ANY (w.kinds))
           AS workers_of_kind,
       -- A job with a concurrency key waits behind jobs of its key, any other job behind those of its queue.
       CASE WHEN j.concurrency_key IS NULL
            THEN (SELECT count(*) FROM awa.ready here JOIN awa.ready ahead
                      ON ahead.queue = here.queue AND ahead.concurrency_key IS NULL
                         AND (ahead.priority, ahead.pos) < (here.priority, here.pos)
                  WHERE here.id = j.id)
            ELSE (SELECT count(*) FROM awa.ready ahead
                  WHERE ahead.queue = j.queue AND ahead.concurrency_key = j.concurrency_key
                    AND (ahead.priority, ahead.id) < (j.priority, j.id)) END AS ahead,
       (SELECT count(*) FROM awa.running_with_key() r WHERE r.concurrency_key = j.concurrency_key AND r.id <> j.id) AS key_running,
       ARRAY(SELECT r.id FROM awa.running_with_key() r WHERE r.concurrency_key = j.concurrency_key AND r.id <> j.id
             ORDER BY r.id LIMIT 5) AS key_holders,
       earlier.id AS earlier_id, earlier.state AS earlier_state
FROM awa.jobs j
LEFT JOIN awa.queues q ON q.name = j.queue
LEFT JOIN awa.workers owner ON owner.id = j.worker_id
-- With an ordered key, the job that must end first: one that has been claimed before, else the next in order.
LEFT JOIN LATERAL (
    (SELECT s.id, s.state FROM awa.scheduled s
     WHERE s.concurrency_key = j.concurrency_key AND s.ordered AND s.id < j.id AND s.lease > 0
     ORDER BY s.id LIMIT 1)
    UNION ALL
    (SELECT r.id, 'available' FROM awa.ready r
     WHERE r.queue = j.queue AND r.concurrency_key = j.concurrency_key AND (r.priority, r.id) < (j.priority, j.id)
     ORDER BY r.priority, r.id LIMIT 1)
    LIMIT 1
) AS earlier ON j.ordered
WHERE j.id = $1
