-- Switches a schedule off that cannot fire, and says why. Answers whether it was on.
-- $1 name · $2 why
UPDATE awa.cron SET enabled = false, last_error = $2, next_at = NULL, updated_at = now()
WHERE name = $1 AND enabled
RETURNING true
