-- Delete a schedule. Its jobs stay. Returns whether it was deleted, and the version of the app that declares it; no row
-- if it does not exist.
-- $1 name · $2 boolean: also if an app declares it
WITH deleted AS (
    DELETE FROM awa.cron WHERE name = $1 AND ($2 OR version IS NULL) RETURNING name
)
SELECT EXISTS (SELECT FROM deleted) AS is_deleted, version FROM awa.cron WHERE name = $1
