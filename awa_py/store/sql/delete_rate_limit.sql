-- Delete a rate limit. Returns its name, or no row if it does not exist.
-- $1 name
DELETE FROM awa.rate_limits WHERE name = $1 RETURNING name
