-- Deletes the rows of workers that have long been silent.
-- $1 staleness
WITH gone AS (
    DELETE FROM awa.workers
    WHERE heartbeat_at < now() - 10 * $1::interval
    RETURNING 1
)
SELECT count(*) FROM gone
