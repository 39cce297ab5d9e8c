-- Disable a schedule that cannot fire, unless it changed meanwhile. Returns true, or no row if it was not enabled.
-- $1 name · $2 the reason · $3 expression and $4 timezone that the caller saw
UPDATE awa.cron SET enabled = false, last_error = $2, next_at = NULL, updated_at = now()
WHERE name = $1 AND enabled AND expression = $3 AND timezone = $4
RETURNING true AS disabled
