-- The schedules.
-- $1 name, NULL: all
SELECT name, expression, timezone, kind, args::text AS args, options::text AS options, misfire, paused, enabled,
       last_error, effective_from, last_enqueued_at, next_at, created_at, updated_at, version, replaced_versions
FROM awa.cron
WHERE $1::text IS NULL OR name = $1
ORDER BY name
