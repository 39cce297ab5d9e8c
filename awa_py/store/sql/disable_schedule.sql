-- Switches a schedule off that cannot fire, and says why; unless it was changed meanwhile. Answers whether it was on.
-- $1 name · $2 why · $3 expression and $4 timezone that the caller saw
UPDATE awa.cron SET enabled = false, last_error = $2, next_at = NULL, updated_at = now()
WHERE name = $1 AND enabled AND expression = $3 AND timezone = $4
RETURNING true
