-- Pauses a schedule or lets it go on. What it missed while paused is not made up for.
-- $1 name · $2 paused
WITH changed AS (
    UPDATE awa.cron
    SET paused = $2, updated_at = now(), next_at = NULL,
        effective_from = CASE WHEN paused AND NOT $2 THEN now() ELSE effective_from END
    WHERE name = $1
    RETURNING name
)
SELECT count(pg_notify('awa' || ':leader', 'cron:' || name)) > 0 FROM changed
