-- Whether awa.completed has its default partition.
SELECT EXISTS (
    SELECT
    FROM pg_partitioned_table p
    JOIN pg_class parent ON parent.oid = p.partrelid
    JOIN pg_class child ON child.oid = p.partdefid
    JOIN pg_namespace n ON n.oid = parent.relnamespace
    WHERE n.nspname = 'awa' AND parent.relname = 'completed' AND child.relname = 'completed_default')
