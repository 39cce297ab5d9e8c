-- Enqueue the jobs of a JSON array, all or none. If another job holds a unique key, the row has the id of that job.
-- `can_read_holder`: another job holds the key, and the login may read it.
-- $1 text: the array that awa.enqueue_many takes. Text, so that a connection's own jsonb codec does not matter.
SELECT id, is_new, state, run_at, created_at, queue,
       NOT is_new AND pg_catalog.has_table_privilege('awa.jobs', 'SELECT')
           AND pg_catalog.has_function_privilege('awa.get_jobs(bigint[])', 'EXECUTE') AS can_read_holder
FROM awa.enqueue_many($1::pg_catalog.text::pg_catalog.jsonb, as_given => true)
ORDER BY n
