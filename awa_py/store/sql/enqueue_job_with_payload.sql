-- Enqueue one job that is due now, has no unique key, and has large arguments: these go to awa.payloads. Otherwise the same as
-- enqueue_job, which is not burdened with this. JSON is text, so that a connection's own jsonb codec does not matter.
-- $1 text: kind. $2 text: queue, NULL: by route. $3 smallint: priority. $4 text: arguments, JSON.
-- $5 smallint: max_attempts. $6 interval: timeout. $7 timestamptz: deadline. $8 text[]: tags. $9 text: metadata, JSON.
-- $10 bigint: parent_id. $11 text: the queue if $2 is NULL and no route matches. $12 text: concurrency key or NULL.
-- $13 smallint: its limit. $14 boolean: whether its jobs are ordered.
WITH payload AS (
    INSERT INTO awa.payloads (job_id, args)
    VALUES (pg_catalog.nextval('awa.job_id'), $4::pg_catalog.text::pg_catalog.jsonb)
    RETURNING job_id
)
INSERT INTO awa.ready (id, kind, queue, priority, args, max_attempts, timeout, expires_at, tags, metadata, parent_id,
                       concurrency_key, concurrency_limit, ordered)
SELECT job_id, $1, coalesce($2, awa.route($1), $11), $3, NULL, $5, $6, $7, $8, $9::pg_catalog.text::pg_catalog.jsonb, $10,
       $12, $13, $14
FROM payload
RETURNING id, created_at, queue, awa.wake(ARRAY[queue], NULL) AS notified
