-- What a leader should have done by now: the seconds since the earliest due job should have been promoted, and since
-- the earliest deadline should have been enforced; and the number of stale jobs among those that run longest.
-- $1 how many of those to check · $2 the default staleness · $3 grace beyond the staleness
SELECT (SELECT extract(epoch FROM now() - run_at)::float8 FROM awa.scheduled
        WHERE state <> 'waiting' ORDER BY run_at LIMIT 1) AS promotion_s,
       (SELECT extract(epoch FROM now() - deadline_at)::float8 FROM awa.running
        WHERE deadline_at IS NOT NULL ORDER BY deadline_at LIMIT 1) AS deadline_s,
       (SELECT count(*) FROM (SELECT queue, heartbeat_at FROM awa.running ORDER BY attempted_at LIMIT $1) AS longest
        LEFT JOIN awa.queues q ON q.name = longest.queue
        WHERE longest.heartbeat_at < now() - coalesce(q.staleness, $2::interval) - $3::interval)::int AS stale_jobs
