-- Delete completed jobs past their retention that dropping a day's partition does not cover: if the retention is
-- shorter than a day, or shorter than another queue's, or the job is in the default partition, or has a payload. Reads no
-- other jobs if all retentions are covered. Keeps jobs whose parent may ask for their results; but a job with a payload only
-- until its day could be dropped, because keep_results has kept its result. Bounded.
-- $1 the default retention · $2 at most this many jobs
WITH retention AS MATERIALIZED (
    SELECT least($1::interval, min(completed_retention)) AS shortest,
           greatest($1::interval, max(completed_retention)) AS longest
    FROM awa.queues
),
stray AS (
    SELECT c.tableoid, c.ctid
    FROM awa.completed_default c LEFT JOIN awa.queues q ON q.name = c.queue
    WHERE c.finalized_at < now() - coalesce(q.completed_retention, $1::interval)
      AND (c.parent_id IS NULL OR NOT awa.needs_children(c.parent_id))
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
),
uncovered AS (
    SELECT c.tableoid, c.ctid
    FROM awa.completed c LEFT JOIN awa.queues q ON q.name = c.queue
    WHERE (SELECT shortest < interval '1 day' OR shortest < longest - interval '1 day' FROM retention)
      AND c.finalized_at < now() - (SELECT shortest FROM retention)
      AND c.finalized_at < now() - coalesce(q.completed_retention, $1::interval)
      AND (coalesce(q.completed_retention, $1::interval) < interval '1 day'
           OR coalesce(q.completed_retention, $1::interval) < (SELECT longest FROM retention) - interval '1 day')
      AND (c.parent_id IS NULL OR NOT awa.needs_children(c.parent_id))
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
),
with_payload AS (
    SELECT c.tableoid, c.ctid
    FROM awa.completed c LEFT JOIN awa.queues q ON q.name = c.queue
    WHERE c.args IS NULL
      AND c.finalized_at < now() - (SELECT shortest FROM retention)
      AND c.finalized_at < now() - coalesce(q.completed_retention, $1::interval)
      AND (c.parent_id IS NULL OR c.finalized_at < now() - (SELECT longest FROM retention)
           OR NOT awa.needs_children(c.parent_id))
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
),
deleted AS (
    DELETE FROM awa.completed c
    USING (SELECT * FROM stray UNION SELECT * FROM uncovered UNION SELECT * FROM with_payload LIMIT $2) AS old
    WHERE c.tableoid = old.tableoid AND c.ctid = old.ctid
    RETURNING id
),
payloads AS (DELETE FROM awa.payloads WHERE job_id = ANY (ARRAY(SELECT id FROM deleted)))
SELECT count(*) FROM deleted
