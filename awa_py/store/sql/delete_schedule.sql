-- Deletes a schedule. Its jobs stay.
-- $1 name
WITH gone AS (DELETE FROM awa.cron WHERE name = $1 RETURNING 1)
SELECT count(*) > 0 FROM gone
