-- Deletes a route. Whether there was one.
-- $1 pattern
WITH gone AS (DELETE FROM awa.routes WHERE pattern = $1 RETURNING 1)
SELECT EXISTS (SELECT FROM gone)
