-- Takes jobs of one queue within its limits and those of their keys: ready → running, with a new lease.
-- $1 queue · $2 the position above which each priority is scanned · $3 how many at the most
-- $4 the kinds that the caller can run · $5 worker id · $6 the key after which to look for keys, '' for the first
-- $7 the kinds whose handlers may look at their whole job · $8 whether to say how long each was due
-- Answers as claim_jobs does; and, where there are more keys than it looked at, a row without id that says where to go on.
SELECT (job).id, (job).lease, (job).kind, (job).attempt, (job).args::text AS args,
       extract(epoch FROM (job).deadline_at - now())::float8 AS deadline_s, (job).priority, pos,
       CASE WHEN (job).kind = ANY ($7::text[])
            THEN ROW((job).max_attempts, (job).run_at, (job).created_at, now(), (job).deadline_at, (job).errors::text,
                     (job).metadata::text, (job).tags, (job).unique_key, (job).parent_id, (job).timeout,
                     (job).rescues) END AS details,
       CASE WHEN $8 THEN greatest(date_part('epoch', now() - (job).run_at), 0) END AS waited_s,
       go_on_after
FROM awa.claim_within_limits($1, $2, $3, $4, $5, $6)
ORDER BY go_on_after NULLS FIRST, (job).priority, pos
