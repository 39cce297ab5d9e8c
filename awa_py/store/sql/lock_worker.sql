-- Takes the lock of a worker for this session, whose end frees it; several sessions of a worker may have it. Answers when the
-- server began that keeps it; no row where a pooler stands in between, whose sessions do not end with a worker.
-- $1 the worker's id · $2 the session's process, as it introduced itself
SELECT CASE WHEN pg_try_advisory_lock_shared(hashtext('awa' || ':workers'), hashtext($1::uuid::text))
            THEN pg_postmaster_start_time() END
WHERE pg_backend_pid() = $2
