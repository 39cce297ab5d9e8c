-- Reserve ids for new jobs, in order, and return the time of the transaction. `ids` is NULL if no other transaction
-- took ids in between: then the first and the last one are enough.
-- $1 int: how many.
WITH ids AS MATERIALIZED (SELECT nextval('awa.job_id') AS id FROM generate_series(1, $1)),
ends AS MATERIALIZED (SELECT min(id) AS first, max(id) AS last FROM ids)
SELECT first, last, CASE WHEN last - first >= $1 THEN ARRAY(SELECT id FROM ids) END AS ids, now() AS now
FROM ends
