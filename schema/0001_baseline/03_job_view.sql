-- All jobs, whatever their state. The payloads are read by the outer query: ORDER BY … LIMIT reads only those that it returns.

CREATE VIEW awa.jobs AS
    SELECT {job with payloads}
    FROM (
        SELECT {carried}, run_at, errors, attempt, lease, state, NULL::uuid AS worker_id,
               NULL::timestamptz AS attempted_at, NULL::timestamptz AS finalized_at, NULL::timestamptz AS heartbeat_at,
               expires_at AS deadline_at, NULL::timestamptz AS cancel_requested_at, NULL::jsonb AS result
        FROM awa.scheduled
        UNION ALL
        SELECT {carried}, run_at, errors, attempt, lease, 'available', NULL, NULL, NULL, NULL, expires_at, NULL, NULL
        FROM awa.ready
        UNION ALL
        SELECT {carried}, run_at, errors, attempt, lease, 'running', worker_id, attempted_at, NULL, heartbeat_at,
               deadline_at, cancel_requested_at, NULL
        FROM awa.running
        UNION ALL
        SELECT {carried}, run_at, errors, attempt, lease, 'completed', worker_id, attempted_at, finalized_at, NULL,
               expires_at, NULL, result
        FROM awa.completed
        UNION ALL
        SELECT {carried}, run_at, errors, attempt, lease, state, worker_id, attempted_at, finalized_at, NULL,
               expires_at, NULL, NULL
        FROM awa.dead
    ) AS jobs;

-- Return jobs by id. A statement that reads the view itself could scan whole tables, depending on the session's settings
-- and on when it was planned.
CREATE FUNCTION awa.get_jobs(ids bigint[]) RETURNS SETOF awa.jobs
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp {stable plans} AS $$
BEGIN
    RETURN QUERY SELECT * FROM awa.jobs WHERE id = ANY (ids);
END $$;
