-- Delete failed and cancelled jobs past their queue's retention, with what they remember, unless a parent may ask for
-- them. Bounded, oldest first.
-- $1 the default retention · $2 at most this many jobs
WITH deleted AS (
    DELETE FROM awa.dead
    WHERE ctid = ANY (ARRAY(
        SELECT d.ctid
        FROM awa.dead d LEFT JOIN awa.queues q ON q.name = d.queue
        WHERE d.finalized_at < now() - least($1::interval, (SELECT min(failed_retention) FROM awa.queues))
          AND d.finalized_at < now() - coalesce(q.failed_retention, $1::interval)
          AND (d.parent_id IS NULL OR NOT awa.needs_children(d.parent_id))
        ORDER BY d.finalized_at
        LIMIT $2
        FOR UPDATE OF d SKIP LOCKED
    ))
    RETURNING id
),
payloads AS (DELETE FROM awa.payloads WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
remembered AS (DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
signalled AS (DELETE FROM awa.signals WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
signal_keys AS (DELETE FROM awa.signal_keys WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
results AS (DELETE FROM awa.kept_results WHERE parent_id = ANY (ARRAY(SELECT id FROM deleted)))
SELECT count(*) FROM deleted
