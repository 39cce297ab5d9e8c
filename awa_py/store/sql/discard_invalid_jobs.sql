-- available, scheduled, retryable, waiting, running → failed, for jobs that break a rule of awa.job_columns. Bounded.
-- $1 the table: ready, scheduled or running · $2 start behind this id · $3 look at this many jobs
-- $4 take a running job only if its heartbeat is older than this or it is past its deadline
-- Returns one row: the discarded jobs as arrays, and the id to continue after (NULL: that was the last).
SELECT ids, queues, kinds, rules, continue_after FROM awa.discard_invalid_jobs($1, $2, $3, $4)
