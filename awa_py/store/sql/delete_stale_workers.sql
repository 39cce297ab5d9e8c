-- Delete the rows of workers that have been silent for ten times the staleness.
-- $1 staleness
WITH deleted AS (
    DELETE FROM awa.workers
    WHERE heartbeat_at < now() - 10 * $1::interval
    RETURNING 1
)
SELECT count(*) FROM deleted
