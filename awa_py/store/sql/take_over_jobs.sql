-- Move stale jobs of dead workers to this worker: running → running, with a new lease and attempt.
-- An attempt that recorded a checkpoint does not count, as in awa.fail_attempts. Jobs without attempts left are left to the rescue. No two take-overs or rescues get the same job.
-- As for a rescue, silence counts only if it was watched: a leader must have led for the staleness, and still lead.
-- $1 queues · $2 kinds · $3 staleness · $4 the largest number of jobs · $5 worker id · $6 the key of the leader's lock
-- Returns the columns of claim_jobs.
WITH written AS MATERIALIZED (SELECT clock_timestamp() AS at),
durable AS MATERIALIZED (SELECT awa.commit_durably())  -- see claim_jobs: the worker of each of these jobs died
UPDATE awa.running r
SET worker_id = $5, lease = r.lease + 1, attempt = CASE WHEN has_recorded THEN 0 ELSE r.attempt END + 1, rescues = r.rescues + 1,
    attempted_at = (SELECT at FROM written), heartbeat_at = (SELECT at FROM written), cancel_requested_at = NULL,
    deadline_at = least((SELECT at FROM written) + coalesce(r.timeout, (SELECT timeout FROM awa.queues WHERE name = r.queue)),
                        r.expires_at),
    errors = awa.append_error(r.errors, r.attempt, 'heartbeat stale: worker presumed dead', r.worker_id,
                              '{"rescued": true}')
FROM (
    SELECT stale.id, recorded.found AS has_recorded
    FROM awa.running stale
    LEFT JOIN awa.queues q ON q.name = stale.queue
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM awa.checkpoints
                                       WHERE job_id = stale.id AND checkpoints.lease = stale.lease OFFSET 0)) AS recorded (found)
    WHERE stale.attempted_at < now() - least($3::interval, (SELECT min(staleness) FROM awa.queues))
      AND stale.heartbeat_at < now() - coalesce(q.staleness, $3::interval)
      AND stale.queue = ANY ($1::text[]) AND stale.kind = ANY ($2::text[])
      AND (stale.attempt < stale.max_attempts OR recorded.found) AND stale.cancel_requested_at IS NULL
      AND (stale.expires_at IS NULL OR stale.expires_at > now())
      AND (SELECT elected_at FROM awa.leader) < now() - coalesce(q.staleness, $3::interval)
      AND (SELECT backend_pid FROM awa.leader) IN (SELECT awa.leader_lock_holders($6))
    ORDER BY stale.attempted_at
    LIMIT $4
    FOR UPDATE OF stale SKIP LOCKED
) AS chosen
WHERE r.id = chosen.id AND (SELECT count(*) FROM durable) >= 0
RETURNING r.id, r.parent_id, r.lease, r.kind, r.attempt, coalesce(r.args, (SELECT payloads.args FROM awa.payloads WHERE payloads.job_id = r.id))::text AS args,
          extract(epoch FROM r.deadline_at - r.attempted_at)::float8 AS deadline_s, r.priority, 0::bigint AS pos,
          CASE WHEN awa.is_readable(r.created_at, r.run_at, r.expires_at, r.timeout)
               THEN json_build_array({details of r})::text END AS details, r.attempted_at,
          CASE WHEN awa.is_time(r.deadline_at) THEN r.deadline_at END AS deadline_at, awa.readable_duration(r.timeout) AS timeout
