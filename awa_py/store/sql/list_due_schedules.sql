-- The schedules whose next fire time has passed or is not yet computed. Bounded.
-- $1 at most this many
SELECT name, expression, timezone, misfire, last_enqueued_at, now() AS now,
       greatest(effective_from, last_enqueued_at) AS since
FROM awa.cron
WHERE enabled AND NOT paused AND (next_at IS NULL OR next_at <= now())
ORDER BY next_at NULLS FIRST
LIMIT $1
