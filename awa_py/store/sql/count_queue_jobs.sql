-- The number of jobs of one table, by queue and state. Reads the whole table or one of its indexes.
-- $1 the table: scheduled, ready, running or dead; the others are not read
SELECT queue, state, count(*) AS jobs FROM awa.scheduled WHERE $1::text = 'scheduled' GROUP BY queue, state
UNION ALL
SELECT queue, 'available', count(*) FROM awa.ready WHERE $1 = 'ready' GROUP BY queue
UNION ALL
SELECT queue, 'running', count(*) FROM awa.running WHERE $1 = 'running' GROUP BY queue
UNION ALL
SELECT queue, state, count(*) FROM awa.dead WHERE $1 = 'dead' GROUP BY queue, state
