-- running → retryable, or failed where attempts or time are used up. The lease guards each row.
-- $1 ids · $2 leases · $3 error texts · $4 delays; NULL: the queue's backoff curve
SELECT id, attempt, max_attempts, extract(epoch FROM retry_at - now())::float8 AS retry_s
FROM awa.fail_attempts($1::bigint[], $2::int[], $3::text[], $4::interval[], false)
