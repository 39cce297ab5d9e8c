-- Ids for new jobs, in order, and the moment of the transaction that they will be enqueued in. The list only where
-- somebody else took ids in between: otherwise the first and the last one say it all.
-- $1 int: how many.
WITH ids AS MATERIALIZED (SELECT nextval('awa.job_id') AS id FROM generate_series(1, $1)),
ends AS MATERIALIZED (SELECT min(id) AS first, max(id) AS last FROM ids)
SELECT first, last, CASE WHEN last - first >= $1 THEN ARRAY(SELECT id FROM ids) END AS ids, now() AS now
FROM ends
