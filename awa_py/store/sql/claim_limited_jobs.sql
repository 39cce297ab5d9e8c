-- Claim jobs of a queue within its limits and those of their keys: available → running, with a new lease.
-- $1 queue · $2 positions: one for each priority; the scan starts behind it · $3 the largest number of jobs
-- $4 the kinds that the worker can run · $5 worker id · $6 ids that find_skipped_jobs returned
-- $7 the kinds whose jobs come with `details` · $8 whether to return how long each job was due
-- Returns the columns of claim_jobs, in no order, and `search`: see awa.claim_within_limits.
--
-- The locks are held until the answer is sent. A worker that is frozen at this moment reads only what fits into the network
-- buffers, so the answer is kept small: jobs that do not fit (`fits`) come without args and details, which read_claimed_jobs
-- returns.
SELECT (job).id, (job).parent_id, (job).lease + 1 AS lease, (job).kind, ((job).attempt + 1)::smallint AS attempt,
       fits, CASE WHEN fits THEN args END AS args,
       extract(epoch FROM deadline_at - claimed_at)::float8 AS deadline_s, (job).priority, (job).pos,
       CASE WHEN $8 THEN greatest(date_part('epoch', now() - (job).run_at), 0) END AS waited_s,
       CASE WHEN fits AND with_details THEN json_build_array({details of (job)})::text END AS details,
       CASE WHEN fits AND with_details THEN claimed_at END AS attempted_at,
       CASE WHEN fits AND with_details THEN deadline_at END AS deadline_at,
       CASE WHEN fits AND with_details THEN (job).timeout END AS timeout,
       search
FROM awa.claim_within_limits($1, $2, $3, $4, $5, $6)
CROSS JOIN LATERAL (
    SELECT coalesce((job).args, (SELECT payloads.args FROM awa.payloads WHERE payloads.job_id = (job).id))::text AS args
) AS read
CROSS JOIN LATERAL (
    SELECT (job).kind = ANY ($7::text[])
           AND awa.is_readable((job).created_at, (job).run_at, (job).expires_at, (job).timeout)
           AND awa.is_time((job).entered_at) AS with_details,
           coalesce(length(args), 0)
           + CASE WHEN (job).kind = ANY ($7)
                  THEN length(concat((job).errors, (job).metadata, (job).tags, (job).unique_key, (job).concurrency_key,
                                     (job).progress))
                  ELSE 0 END <= 64000 / $3::int AS fits,
           least(claimed_at + coalesce((job).timeout, (SELECT timeout FROM awa.queues WHERE name = $1)), (job).expires_at)
               AS deadline_at
) AS more
