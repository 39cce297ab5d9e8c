-- Takes the head of one queue that has no limits: ready → running, with a new lease. Disjoint from every other claim.
-- Jobs with a key are left to claim_limited_jobs.
-- $1 queue · $2 priorities · $3 the position above which each priority is scanned · $4 how many at the most
-- $5 the kinds that the caller can run · $6 worker id
-- $7 the kinds whose handlers may look at their whole job: decoding that is dear, and left out for the others
-- $8 whether to say how long each was due
-- Where the queue has limits, or jobs with a key, the last row has no id.
--
-- One scan a priority keeps the order (priority, pos) and lets LIMIT stop early. ctid = ANY (ARRAY(…)) is a TID
-- scan whatever the statistics say; a join would turn into a hash join at large batches.
WITH gone AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(
        SELECT head.ctid
        FROM unnest($2::smallint[], $3::bigint[]) AS level(priority, above)
        CROSS JOIN LATERAL (
            SELECT ready.ctid
            FROM awa.ready
            WHERE queue = $1 AND priority = level.priority AND pos > level.above
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
    RETURNING *, now() AS attempted_at,
              least(now() + coalesce(timeout, (SELECT timeout FROM awa.queues WHERE name = $1)),
                    expires_at) AS deadline_at
),
claimed AS (
    INSERT INTO awa.running ({carried}, run_at, errors, attempt, lease, worker_id, deadline_at)
    SELECT {carried}, run_at, errors, attempt + 1, lease + 1, $6, deadline_at
    FROM gone
)
(SELECT id, (lease + 1)::int AS lease, kind, (attempt + 1)::smallint AS attempt, args::text AS args,
        extract(epoch FROM deadline_at - now())::float8 AS deadline_s, priority, pos,
        CASE WHEN kind = ANY ($7::text[])
             THEN {details} END AS details,
        CASE WHEN $8 THEN greatest(date_part('epoch', now() - run_at), 0) END AS waited_s
 FROM gone
 ORDER BY priority, pos)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL::record, NULL
WHERE EXISTS (SELECT FROM awa.queues WHERE name = $1 AND (max_workers IS NOT NULL OR rate_jobs IS NOT NULL))
   OR EXISTS (SELECT
              FROM unnest($2::smallint[], $3::bigint[]) AS level(priority, above)
              CROSS JOIN LATERAL (SELECT FROM awa.ready
                                  WHERE queue = $1 AND priority = level.priority AND pos > level.above
                                    AND concurrency_key IS NOT NULL
                                  ORDER BY pos LIMIT 1) AS head)
