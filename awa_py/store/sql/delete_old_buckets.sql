-- Delete the roll-ups of minutes past the retention. Bounded, oldest first.
-- $1 retention · $2 at most this many rows
WITH deleted AS (
    DELETE FROM awa.metric_buckets
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.metric_buckets WHERE at < now() - $1::interval
                            ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM deleted
