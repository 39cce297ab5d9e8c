-- Enqueues the jobs of a JSON array. All of them or none; unique keys that are held name their holder.
-- `can_read_holder`: a key was held, and the login may read its holder.
-- $1 text: the array, as awa.enqueue_many takes it. Text, so that a caller's own jsonb codec does not matter.
SELECT id, is_new, state, run_at, created_at, queue,
       NOT is_new AND has_table_privilege('awa.jobs', 'SELECT') AS can_read_holder
FROM awa.enqueue_many($1::text::jsonb)
ORDER BY n
