-- Reserve ids for new jobs, in order, and return the time of the transaction. `ids` is NULL if no other transaction
-- took ids in between: then the first and the last one are enough. They are the text of an array, because asyncpg would
-- look up the array's type on the caller's connection.
-- $1 int: how many.
WITH ids AS MATERIALIZED (SELECT pg_catalog.nextval('awa.job_id') AS id FROM pg_catalog.generate_series(1, $1)),
ends AS MATERIALIZED (SELECT pg_catalog.min(id) AS first, pg_catalog.max(id) AS last FROM ids)
SELECT first, last, CASE WHEN (last OPERATOR(pg_catalog.-) first) OPERATOR(pg_catalog.>=) $1 THEN ARRAY(SELECT id FROM ids)::pg_catalog.text END AS ids,
       pg_catalog.now() AS now
FROM ends
