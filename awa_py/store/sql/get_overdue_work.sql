-- What a leader should have done by now: for how many seconds the earliest due job has not been promoted, the earliest
-- deadline has not been enforced; and how many of the jobs that have run for longest nobody beats for any more.
-- $1 how many of those to look at · $2 staleness, where the queue has none of its own · $3 grace beyond it
SELECT (SELECT extract(epoch FROM now() - run_at)::float8 FROM awa.scheduled
        WHERE state <> 'waiting' ORDER BY run_at LIMIT 1) AS promotion_s,
       (SELECT extract(epoch FROM now() - deadline_at)::float8 FROM awa.running
        WHERE deadline_at IS NOT NULL ORDER BY deadline_at LIMIT 1) AS deadline_s,
       (SELECT count(*) FROM (SELECT queue, heartbeat_at FROM awa.running ORDER BY attempted_at LIMIT $1) AS longest
        LEFT JOIN awa.queues q ON q.name = longest.queue
        WHERE longest.heartbeat_at < now() - coalesce(q.staleness, $2::interval) - $3::interval)::int AS stale_jobs
