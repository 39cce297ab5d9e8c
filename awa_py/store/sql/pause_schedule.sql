-- Pause or resume a schedule. Fire times that passed while it was paused are not made up.
-- $1 name · $2 paused
WITH changed AS (
    UPDATE awa.cron
    SET paused = $2, updated_at = now(), next_at = NULL,
        effective_from = CASE WHEN paused AND NOT $2 THEN now() ELSE effective_from END
    WHERE name = $1
    RETURNING name
)
SELECT count(pg_notify('awa' || ':leader', 'cron:' || name)) > 0 AS changed FROM changed
