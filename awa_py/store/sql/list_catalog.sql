-- The objects of the schema, as rows of part, name and definition: tables, views and sequences, columns, indexes,
-- constraints, triggers, functions. Without partitions, which change daily, and without what differs between versions
-- of PostgreSQL, such as the text of parsed bodies (BEGIN ATOMIC). The search path must be empty, so that names in
-- definitions are qualified.
WITH relations AS (
    SELECT c.oid, c.relname, c.relkind
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'awa' AND c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition
)
SELECT 'table' AS part, relname::text AS name,
       CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'p' THEN 'partitioned table' ELSE 'table' END
           AS definition
FROM relations
UNION ALL
SELECT 'column', r.relname || '.' || a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid))
FROM relations r
JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
WHERE r.relkind <> 'S'
UNION ALL
SELECT 'index', i.relname, pg_get_indexdef(i.oid)
FROM relations r JOIN pg_index x ON x.indrelid = r.oid JOIN pg_class i ON i.oid = x.indexrelid
WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.oid AND k.contype IN ('p', 'u', 'x'))
UNION ALL
SELECT 'constraint', r.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM relations r JOIN pg_constraint k ON k.conrelid = r.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')
UNION ALL
SELECT 'trigger', r.relname || '.' || t.tgname, pg_get_triggerdef(t.oid)
FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       concat(CASE WHEN p.prosecdef THEN 'SECURITY DEFINER ' END, 'SET ' || array_to_string(p.proconfig, ' SET '), p.prosrc)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'awa'
ORDER BY part, name
