-- Delete events past the retention that are in the default partition, because their day had no partition. Bounded.
-- $1 retention · $2 at most this many rows
WITH deleted AS (
    DELETE FROM awa.events_default
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.events_default WHERE at < now() - $1::interval
                            LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM deleted
