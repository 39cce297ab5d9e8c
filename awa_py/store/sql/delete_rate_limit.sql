-- Deletes a rate limit.
-- $1 name
DELETE FROM awa.rate_limits WHERE name = $1 RETURNING name
