-- Enqueue one job that is due now, and acquire its unique key. Returns no row if the key exists, even if its holder has
-- ended: then awa.enqueue_many decides. The workers of its queue are notified with the commit.
-- JSON is text, so that a connection's own jsonb codec does not matter.
-- $1 text: kind. $2 text: queue, NULL: by route. $3 smallint: priority. $4 text: arguments, JSON.
-- $5 smallint: max_attempts. $6 interval: timeout. $7 timestamptz: deadline. $8 text[]: tags. $9 text: metadata, JSON.
-- $10 bigint: parent_id. $11 text: the queue if $2 is NULL and no route matches. $12 text: concurrency key or NULL.
-- $13 smallint: its limit. $14 boolean: whether its jobs are ordered. $15 text: unique key.
-- $16 interval: how long the job holds it at most, or NULL. $17 text[]: the states in which it holds it.
WITH acquired AS (
    INSERT INTO awa.unique_keys (key, job_id, expires_at, states)
    VALUES ($15, pg_catalog.nextval('awa.job_id'), pg_catalog.now() OPERATOR(pg_catalog.+) $16::pg_catalog.interval, $17)
    ON CONFLICT (key) DO NOTHING
    RETURNING job_id
)
INSERT INTO awa.ready (id, kind, queue, priority, args, max_attempts, timeout, expires_at, tags, metadata, parent_id,
                       concurrency_key, concurrency_limit, ordered, unique_key)
SELECT job_id, $1, coalesce($2, awa.route($1), $11), $3, $4::pg_catalog.text::pg_catalog.jsonb, $5, $6, $7, $8,
       $9::pg_catalog.text::pg_catalog.jsonb, $10, $12, $13, $14, $15
FROM acquired
RETURNING id, created_at, queue, awa.wake(ARRAY[queue], NULL) AS notified
