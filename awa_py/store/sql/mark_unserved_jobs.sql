-- Looks at a window of ready jobs, in the order of claims, for kinds that no live worker of their queue knows; says
-- so in their errors, once, and leaves them where they are. Of the jobs with a key, the first ones belong to the first
-- window.
-- $1 queue, $2 priority, $3 position after which the window begins · $4 how many jobs it has
-- $5 staleness: workers silent for longer are dead · $6 how long a job must have been due
-- Answers a row for each kind that was marked, with the queue and how many; and one, without kind, for the
-- window's end: its queue, priority, pos and how many it had.
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
SELECT queue, kind, NULL::smallint AS priority, NULL::bigint AS pos, count(*) AS jobs FROM marked GROUP BY queue, kind
UNION ALL
(SELECT queue, NULL, priority, pos, (SELECT count(*) FROM seen) FROM seen ORDER BY queue DESC, priority DESC, pos DESC LIMIT 1)
