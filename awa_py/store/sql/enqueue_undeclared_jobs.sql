-- Enqueue the jobs of a JSON array, all or none, with the values that their kinds declare. Returns these values, too.
-- If another job holds a unique key, the row has the id of that job.
-- `can_read_holder`: another job holds the key, and the login may read it.
-- $1 text: the array that awa.enqueue_many takes. Text, so that a connection's own jsonb codec does not matter.
WITH complete AS MATERIALIZED (SELECT awa.complete_jobs($1::pg_catalog.text::pg_catalog.jsonb) AS jobs)
SELECT id, is_new, state, run_at, created_at, queue,
       NOT is_new AND pg_catalog.has_table_privilege('awa.jobs', 'SELECT') AS can_read_holder,
       priority, max_attempts, timeout, tags, metadata::pg_catalog.text AS metadata, unique_key, concurrency_key,
       concurrency_limit, ordered
FROM complete CROSS JOIN LATERAL ROWS FROM (  -- side by side: both return the jobs in order
    awa.enqueue_many(jobs, as_given => true),
    pg_catalog.jsonb_to_recordset(jobs) AS (
        priority pg_catalog.int2, max_attempts pg_catalog.int2, timeout pg_catalog.interval, tags pg_catalog.text[],
        metadata pg_catalog.jsonb, unique_key pg_catalog.text, concurrency_key pg_catalog.text,
        concurrency_limit pg_catalog.int2, ordered pg_catalog.bool)
) AS enqueued (n, id, is_new, state, run_at, created_at, queue, priority, max_attempts, timeout, tags, metadata,
               unique_key, concurrency_key, concurrency_limit, ordered)
ORDER BY n
