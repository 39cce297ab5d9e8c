-- Claim the first jobs of a queue that has no limits: available → running, with a new lease. No two claims get the same job.
-- Jobs with a concurrency key are left to claim_limited_jobs.
-- $1 queue · $2 priorities · $3 positions: one for each priority; the scan starts behind it · $4 the largest number of jobs
-- $5 the kinds that the worker can run · $6 worker id · $7 the kinds whose jobs come with `details`: decoding is expensive
-- (NULL if Python cannot read the row)
-- $8 whether to return how long each job was due
-- `args` is NULL if the job's payload is missing.
-- `limited`: the queue has limits or jobs with a key behind these positions. If there is no row, see needs_limited_claim.
--
-- One scan for each priority keeps the order (priority, pos) and lets LIMIT stop early. ctid = ANY (ARRAY(…)) is always a
-- TID scan; a join would become a hash join at large batches.
-- If a crash of the server undoes the claim, the attempt does not count. A queue can exclude that, and a job whose worker
-- died before always does: it may be the cause of the crash.
-- The lease begins when the rows are written: now() is older if the statement had to wait for a lock.
WITH written AS MATERIALIZED (SELECT clock_timestamp() AS at),
deleted AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(
        SELECT head.ctid
        FROM unnest($2::smallint[], $3::bigint[]) AS level(priority, after_position)
        CROSS JOIN LATERAL (
            SELECT ready.ctid
            FROM awa.ready
            WHERE queue = $1 AND priority = level.priority AND pos > level.after_position
              AND concurrency_key IS NULL
              AND kind = ANY ($5::text[])
              AND (expires_at IS NULL OR expires_at > now())
            ORDER BY pos
            LIMIT $4
            FOR UPDATE SKIP LOCKED
        ) AS head
        WHERE NOT EXISTS (SELECT FROM awa.queues
                          WHERE name = $1
                            AND ((paused AND paused_until > now() IS NOT FALSE) OR throttled_until > now()
                                 OR max_workers IS NOT NULL OR rate_jobs IS NOT NULL))
        LIMIT $4
    ))
    RETURNING *, least((SELECT at FROM written) + coalesce(timeout, (SELECT timeout FROM awa.queues WHERE name = $1)),
                       expires_at) AS deadline_at,
              CASE WHEN kind = ANY ($7::text[]) AND awa.is_readable(created_at, run_at, expires_at, timeout) AND awa.is_time(entered_at)
                   THEN json_build_array({details of ready})::text END AS details
),
durable AS MATERIALIZED (
    SELECT awa.commit_durably()
    WHERE EXISTS (SELECT FROM deleted
                  WHERE rescues > 0 OR (SELECT durable_claims FROM awa.queues WHERE name = $1))
),
inserted AS (
    INSERT INTO awa.running ({carried}, run_at, errors, attempt, lease, worker_id, attempted_at, heartbeat_at,
                             deadline_at)
    SELECT {carried}, run_at, errors, attempt + 1, lease + 1, $6, (SELECT at FROM written), (SELECT at FROM written),
           deadline_at
    FROM deleted
    WHERE (SELECT count(*) FROM durable) >= 0  -- always true: a query that nothing reads is not run
)
SELECT id, parent_id, (lease + 1)::int AS lease, kind, (attempt + 1)::smallint AS attempt, {args}::text AS args,
       extract(epoch FROM deadline_at - (SELECT at FROM written))::float8 AS deadline_s, priority, pos,
       CASE WHEN $8 THEN greatest(date_part('epoch', now() - run_at), 0) END AS waited_s,
       details, CASE WHEN details IS NOT NULL THEN (SELECT at FROM written) END AS attempted_at,
       CASE WHEN details IS NOT NULL THEN deadline_at END AS deadline_at, CASE WHEN details IS NOT NULL THEN timeout END AS timeout,
       EXISTS (SELECT
               FROM unnest($2::smallint[], $3::bigint[]) AS level(priority, after_position)
               CROSS JOIN LATERAL (SELECT FROM awa.ready
                                   WHERE queue = $1 AND priority = level.priority AND pos > level.after_position
                                     AND concurrency_key IS NOT NULL
                                   ORDER BY pos LIMIT 1) AS head) AS limited
FROM deleted
ORDER BY priority, pos
