-- Takes jobs of one queue within its limits and those of their keys: ready → running, with a new lease.
-- $1 queue · $2 the position above which each priority is scanned · $3 how many at the most
-- $4 the kinds that the caller can run · $5 worker id · $6 jobs elsewhere that may be taken too
-- $7 the kinds whose handlers may look at their whole job · $8 whether to say how long each was due
-- Answers as claim_jobs does; and at last a row without id, where it is worth searching for others before the next claim.
SELECT id, lease + 1 AS lease, kind, (attempt + 1)::smallint AS attempt, args::text AS args,
       extract(epoch FROM deadline_at - now())::float8 AS deadline_s, priority, pos,
       CASE WHEN kind = ANY ($7::text[])
            THEN ROW(max_attempts, run_at, created_at, now(), deadline_at, errors::text, metadata::text, tags, unique_key,
                     parent_id, timeout, rescues, concurrency_key, concurrency_limit, ordered) END AS details,
       CASE WHEN $8 THEN greatest(date_part('epoch', now() - run_at), 0) END AS waited_s
FROM awa.claim_within_limits($1, $2, $3, $4, $5, $6) AS job
CROSS JOIN LATERAL (
    SELECT least(now() + coalesce(job.timeout, (SELECT timeout FROM awa.queues WHERE name = $1)),
                 job.expires_at) AS deadline_at) AS limits
ORDER BY id IS NULL, priority, pos
