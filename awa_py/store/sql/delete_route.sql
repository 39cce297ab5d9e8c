-- Delete a route. Returns its pattern, or no row if it does not exist.
-- $1 pattern
DELETE FROM awa.routes WHERE pattern = $1 RETURNING pattern
