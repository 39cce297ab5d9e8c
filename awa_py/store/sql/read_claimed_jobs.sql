-- Reads jobs that this worker has just claimed, as claim_jobs answers them; see claim_limited_jobs.
-- $1 their ids · $2 the positions that they had · $3 worker id
-- $4 the kinds whose handlers may look at their whole job · $5 whether to say how long each was due
SELECT id, lease, kind, attempt, args::text AS args,
       extract(epoch FROM deadline_at - attempted_at)::float8 AS deadline_s, priority, claimed.pos,
       CASE WHEN kind = ANY ($4::text[])
            THEN {details} END AS details,
       CASE WHEN $5 THEN greatest(date_part('epoch', attempted_at - run_at), 0) END AS waited_s
FROM unnest($1::bigint[], $2::bigint[]) AS claimed(id, pos) JOIN awa.running USING (id)
WHERE worker_id = $3
