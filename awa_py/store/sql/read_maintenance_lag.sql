-- How far the leader is behind with promotion, rescue and cleanup, and the number of live workers.
-- $1 the default staleness · $2 the retention of failed jobs · $3 of completed jobs · $4 count dead jobs up to this
-- number
WITH retention AS (
    SELECT least($2::interval, min(failed_retention)) AS failed,
           greatest($3::interval, max(completed_retention)) AS completed
    FROM awa.queues
)
SELECT coalesce((SELECT greatest(date_part('epoch', now() - run_at), 0) FROM awa.scheduled
                 ORDER BY run_at LIMIT 1), 0)::float8 AS promotion_lag_s,
       coalesce((SELECT greatest(max(date_part('epoch', now() - r.heartbeat_at - coalesce(q.staleness, $1::interval))), 0)
                 FROM awa.running r LEFT JOIN awa.queues q ON q.name = r.queue
                 WHERE r.attempted_at < now() - least($1::interval, (SELECT min(staleness) FROM awa.queues))),
                0)::float8 AS rescue_lag_s,
       (SELECT count(*) FROM (
            SELECT FROM awa.dead d LEFT JOIN awa.queues q ON q.name = d.queue
            WHERE d.finalized_at < now() - (SELECT failed FROM retention)
              AND d.finalized_at < now() - coalesce(q.failed_retention, $2::interval)
            LIMIT $4) AS expired) AS dead,
       -- Whole days, from the planner's statistics: they will be dropped, so counting them is not worth it.
       (SELECT coalesce(sum(greatest(part.reltuples, 1)), 0)::float8
        FROM pg_inherits JOIN pg_class part ON part.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = 'awa.completed'::regclass
          AND part.relname ~ '^completed_\d{8}$'
          AND (to_date(right(part.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
              <= now() - (SELECT completed FROM retention)) AS completed,
       (SELECT count(*) FROM awa.workers WHERE heartbeat_at > now() - $1::interval) AS workers
