-- Deletes events past their retention that had no partition of their day. Bounded.
-- $1 retention · $2 how many at the most
WITH gone AS (
    DELETE FROM awa.events_default
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.events_default WHERE at < now() - $1::interval
                            LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone
