-- What decides whether a job that is not running could run, and who runs one that is.
-- $1 id · $2 staleness: workers silent for longer are dead
SELECT j.id, j.kind, j.queue, j.state, j.run_at, j.run_at > now() AS future,
       extract(epoch FROM j.run_at - now())::float8 AS due_s, j.attempt, j.max_attempts,
       coalesce(q.paused AND q.paused_until > now() IS NOT FALSE, false) AS paused, q.paused_until,
       owner.hostname || ':' || owner.pid AS owner, extract(epoch FROM now() - owner.heartbeat_at)::float8 AS owner_silent_s,
       (SELECT count(*) FROM awa.workers w WHERE w.heartbeat_at > now() - $2::interval) AS workers,
       (SELECT count(*) FROM awa.workers w
        WHERE w.heartbeat_at > now() - $2::interval AND j.queue = ANY (w.queues)) AS workers_of_queue,
       (SELECT count(*) FROM awa.workers w
        WHERE w.heartbeat_at > now() - $2::interval AND j.queue = ANY (w.queues) AND j.kind = ANY (w.kinds))
           AS workers_of_kind,
       (SELECT count(*) FROM awa.ready here JOIN awa.ready ahead
            ON ahead.queue = here.queue AND (ahead.priority, ahead.pos) < (here.priority, here.pos)
        WHERE here.id = j.id) AS ahead
FROM awa.jobs j
LEFT JOIN awa.queues q ON q.name = j.queue
LEFT JOIN awa.workers owner ON owner.id = j.worker_id
WHERE j.id = $1
