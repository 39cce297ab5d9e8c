-- Takes jobs of one queue within its limits and those of their keys: ready → running, with a new lease.
-- $1 queue · $2 the position above which each priority is scanned · $3 how many at the most
-- $4 the kinds that the caller can run · $5 worker id · $6 jobs elsewhere that may be taken too
-- $7 the kinds whose handlers may look at their whole job · $8 whether to say how long each was due
-- $9 how far below the last that it takes the next claim begins
-- Answers as claim_jobs does, but in no order; and at last a row without id, where there is something to say: see
-- claim_within_limits.
--
-- The locks are held until the answer is sent. Whoever is frozen in this moment reads no more of it than fits into the
-- buffers in between, so it is kept small: larger jobs come without args and details, which read_claimed_jobs has.
SELECT id, lease + 1 AS lease, kind, (attempt + 1)::smallint AS attempt,
       CASE WHEN fits OR id IS NULL THEN args::text END AS args,
       extract(epoch FROM deadline_at - now())::float8 AS deadline_s, priority, pos,
       CASE WHEN fits AND shown
            THEN {details} END AS details,
       CASE WHEN $8 THEN greatest(date_part('epoch', now() - run_at), 0) END AS waited_s
FROM awa.claim_within_limits($1, $2, $9, $3, $4, $5, $6) AS job
CROSS JOIN LATERAL (
    SELECT kind = ANY ($7::text[]) AS shown, now() AS attempted_at,
           length(args::text) + CASE WHEN kind = ANY ($7) THEN length(concat(errors, metadata, tags, unique_key, concurrency_key))
                                     ELSE 0 END <= 64000 / $3::int AS fits,
           least(now() + coalesce(timeout, (SELECT timeout FROM awa.queues WHERE name = $1)), expires_at) AS deadline_at
) AS more
