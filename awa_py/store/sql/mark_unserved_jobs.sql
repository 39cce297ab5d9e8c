-- Add an error to available jobs whose kind no live worker of their queue can run, once per job, and leave them where
-- they are. Checks a window of jobs in the order of claims. The first jobs with a concurrency key belong to the first
-- window.
-- $1 queue, $2 priority, $3 position after which the window begins · $4 its number of jobs
-- $5 staleness: workers that were silent for longer are dead · $6 how long a job must have been due
-- Returns one row: the marked jobs as arrays (queues, kinds, jobs), the number of jobs in the window (`seen`), and the
-- last position of the window.
WITH seen AS MATERIALIZED (
    SELECT ctid, queue, priority, pos, kind, errors, run_at
    FROM awa.ready
    WHERE (queue, priority, pos) > ($1, $2::smallint, $3::bigint) AND concurrency_key IS NULL
    ORDER BY queue, priority, pos
    LIMIT $4
),
keyed AS MATERIALIZED (
    SELECT ctid, queue, kind, errors, run_at
    FROM awa.ready
    WHERE concurrency_key IS NOT NULL AND $1 = ''
    ORDER BY queue, concurrency_key, priority, id
    LIMIT $4
),
due AS MATERIALIZED (
    SELECT ctid, queue, kind, errors FROM seen WHERE run_at < now() - $6::interval
    UNION ALL
    SELECT ctid, queue, kind, errors FROM keyed WHERE run_at < now() - $6::interval
),
pairs AS MATERIALIZED (SELECT DISTINCT queue, kind FROM due),
unserved AS MATERIALIZED (
    SELECT queue, kind FROM pairs
    WHERE NOT EXISTS (SELECT FROM awa.workers w
                      WHERE w.heartbeat_at > now() - $5::interval
                        AND pairs.queue = ANY (w.queues) AND pairs.kind = ANY (w.kinds))
),
marked AS (
    UPDATE awa.ready r
    SET errors = awa.append_error(r.errors, r.attempt, 'no handler registered for kind: ' || r.kind)
    WHERE r.ctid = ANY (ARRAY(
        SELECT due.ctid
        FROM due JOIN unserved USING (queue, kind)
        WHERE NOT coalesce(due.errors, '[]') @> jsonb_build_array(
                  jsonb_build_object('error', 'no handler registered for kind: ' || due.kind))))
    RETURNING r.queue, r.kind
)
SELECT summary.queues, summary.kinds, summary.jobs, (SELECT count(*) FROM seen) AS seen,
       last.queue AS last_queue, last.priority AS last_priority, last.pos AS last_pos
FROM (SELECT coalesce(array_agg(queue), '{}') AS queues, coalesce(array_agg(kind), '{}') AS kinds,
             coalesce(array_agg(jobs), '{}') AS jobs
      FROM (SELECT queue, kind, count(*) AS jobs FROM marked GROUP BY queue, kind) AS grouped) AS summary
LEFT JOIN (SELECT queue, priority, pos FROM seen ORDER BY queue DESC, priority DESC, pos DESC LIMIT 1) AS last ON true
