-- running → retryable; or failed, if no attempt or time is left; or cancelled, if requested. Lease and worker guard
-- each row.
-- $1 ids · $2 leases · $3 worker id · $4 error texts · $5 delays; NULL: the queue's backoff
-- $6 further fields of the errors, JSON objects
-- Returns the jobs that the worker held; retry_s is NULL if there is no retry.
SELECT id, attempt, max_attempts, extract(epoch FROM retry_at - now())::float8 AS retry_s
FROM awa.fail_attempts($1::bigint[], $2::int[], $4::text[], $5::interval[], crashed => false, holder => $3,
                       details => $6::text[])
