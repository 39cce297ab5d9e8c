-- The schedules whose next fire time has come or is not worked out yet. Bounded.
-- $1 how many at the most
SELECT name, expression, timezone, misfire, last_enqueued_at, now() AS now,
       greatest(effective_from, last_enqueued_at) AS since
FROM awa.cron
WHERE enabled AND NOT paused AND (next_at IS NULL OR next_at <= now())
ORDER BY next_at NULLS FIRST
LIMIT $1
