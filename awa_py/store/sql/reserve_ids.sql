-- Ids for new jobs, in order, and the moment of the transaction that they will be enqueued in.
-- $1 int: how many.
SELECT array(SELECT nextval('awa.job_id') FROM generate_series(1, $1)) AS ids, now() AS now
