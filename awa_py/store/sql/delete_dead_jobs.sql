-- Delete failed and cancelled jobs past their queue's retention. Bounded, oldest first.
-- $1 the default retention · $2 at most this many jobs
WITH deleted AS (
    DELETE FROM awa.dead
    WHERE ctid = ANY (ARRAY(
        SELECT d.ctid
        FROM awa.dead d LEFT JOIN awa.queues q ON q.name = d.queue
        WHERE d.finalized_at < now() - least($1::interval, (SELECT min(failed_retention) FROM awa.queues))
          AND d.finalized_at < now() - coalesce(q.failed_retention, $1::interval)
        ORDER BY d.finalized_at
        LIMIT $2
        FOR UPDATE OF d SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) FROM deleted
