-- Return jobs that this worker has just claimed, with the columns of claim_jobs; see claim_limited_jobs.
-- $1 ids · $2 the positions that they had · $3 worker id
-- $4 the kinds whose jobs come with `details` · $5 whether to return how long each job was due
SELECT id, parent_id, lease, kind, attempt, {args}::text AS args,
       extract(epoch FROM deadline_at - attempted_at)::float8 AS deadline_s, priority, claimed.pos,
       CASE WHEN $5 THEN greatest(date_part('epoch', attempted_at - run_at), 0) END AS waited_s,
       CASE WHEN kind = ANY ($4::text[]) AND awa.is_readable(created_at, run_at, expires_at, timeout)
            THEN json_build_array({details of running})::text END AS details,
       attempted_at, CASE WHEN awa.is_time(deadline_at) THEN deadline_at END AS deadline_at,
       awa.readable_duration(timeout) AS timeout
FROM unnest($1::bigint[], $2::bigint[]) AS claimed(id, pos) JOIN awa.running USING (id)
WHERE worker_id = $3
