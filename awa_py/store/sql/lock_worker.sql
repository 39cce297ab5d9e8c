-- Acquire a worker's advisory lock for this session. The end of the session releases it; several sessions of a worker
-- can hold it. Returns the start time of the server that holds it, or no row behind a pooler, because the pooler's
-- sessions do not end with the worker.
-- $1 the worker's id · $2 the session's process id, as the server reported it to the client
SELECT CASE WHEN pg_try_advisory_lock_shared(hashtext('awa' || ':workers'), hashtext($1::uuid::text))
            THEN pg_postmaster_start_time() END AS server_started_at
WHERE pg_backend_pid() = $2
