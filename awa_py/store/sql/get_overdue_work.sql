-- What a leader should have done by now: the seconds since the earliest due job should have been promoted, and since
-- the earliest deadline should have been enforced; and the number of stale jobs among those that run longest. A new
-- leader rescues nothing before it has led for the staleness.
-- $1 how many of those to check · $2 the default staleness · $3 grace beyond the staleness
SELECT (SELECT extract(epoch FROM now() - run_at)::float8 FROM awa.scheduled
        ORDER BY run_at LIMIT 1) AS promotion_s,
       (SELECT extract(epoch FROM now() - greatest(deadline_at, (SELECT elected_at + $2::interval FROM awa.leader)))::float8
        FROM awa.running
        WHERE deadline_at IS NOT NULL ORDER BY deadline_at LIMIT 1) AS deadline_s,
       (SELECT count(*) FROM (SELECT queue, heartbeat_at FROM awa.running ORDER BY attempted_at LIMIT $1) AS longest
        LEFT JOIN awa.queues q ON q.name = longest.queue
        WHERE greatest(longest.heartbeat_at, (SELECT elected_at FROM awa.leader)) < now() - coalesce(q.staleness, $2::interval) - $3::interval)::int AS stale_jobs
