-- Delete a schedule. Its jobs stay. Returns its name, or no row if it does not exist.
-- $1 name
DELETE FROM awa.cron WHERE name = $1 RETURNING name
