-- running → available, or scheduled if there is a delay, as the next state: with another kind and other arguments; or
-- cancelled, if requested. Lease and worker guard each row. What the kind of the next state declares (awa.kinds) replaces the
-- values of the job: queue, priority, attempts, timeout and concurrency key. If it declares no queue or no concurrency key, the
-- job keeps its own, except a key that the kind of the last state declared. Attempts and rescues start anew, without progress
-- and checkpoints. Signals that were not taken stay: they were sent to the job.
-- $1 ids · $2 leases · $3 worker id · $4 the next states: a JSON array of objects with kind, args and delay
-- Returns the ids that the worker held.
WITH declared AS MATERIALIZED (
    SELECT jsonb_object_agg(id, next) AS by_id
    FROM ROWS FROM (unnest($1::bigint[]), jsonb_array_elements(awa.complete_jobs($4::text::jsonb))) AS given (id, next)
),
routes AS MATERIALIZED (
    SELECT jsonb_object_agg(kind, awa.route(kind)) AS by_kind
    FROM (SELECT DISTINCT next ->> 'kind' AS kind FROM jsonb_array_elements($4::text::jsonb) AS next) AS kinds
),
ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, (SELECT by_id FROM declared) -> id::text AS next
),
keyed AS MATERIALIZED (  -- the kinds of the last states that declare a concurrency key
    SELECT ARRAY(SELECT kind FROM awa.kinds WHERE kind = ANY (ARRAY(SELECT DISTINCT kind FROM ended)) AND key_parts IS NOT NULL) AS kinds
),
forgotten AS (DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM ended WHERE cancel_requested_at IS NULL))),
results AS (DELETE FROM awa.kept_results WHERE parent_id = ANY (ARRAY(SELECT id FROM ended WHERE cancel_requested_at IS NULL))),
advanced AS MATERIALIZED (
    SELECT {carried without kind, args, queue, priority, max_attempts, timeout, concurrency_key, concurrency_limit, ordered, rescues, progress},
           errors, lease, next ->> 'kind' AS kind, next -> 'args' AS all_args,
           CASE WHEN pg_column_size(next -> 'args') <= {max inline bytes} THEN next -> 'args' END AS args, NULL::jsonb AS progress, 0::smallint AS rescues,
           coalesce(next ->> 'queue', (SELECT by_kind FROM routes) ->> (next ->> 'kind'),
                    nullif(next ->> 'default_queue', 'default'), queue) AS queue,
           coalesce((next ->> 'priority')::smallint, priority) AS priority,
           coalesce((next ->> 'max_attempts')::smallint, max_attempts) AS max_attempts,
           CASE WHEN next ? 'max_attempts' THEN (next ->> 'timeout')::interval ELSE timeout END AS timeout,
           CASE WHEN keeps_key THEN concurrency_key ELSE next ->> 'concurrency_key' END AS concurrency_key,
           CASE WHEN keeps_key THEN concurrency_limit ELSE (next ->> 'concurrency_limit')::smallint END AS concurrency_limit,
           CASE WHEN keeps_key THEN ordered ELSE (next ->> 'ordered')::boolean END AS ordered,
           now() + coalesce((next ->> 'delay')::interval, '0') AS run_at
    FROM (SELECT *, NOT next ? 'concurrency_key' AND kind <> ALL ((SELECT kinds FROM keyed)::text[]) AS keeps_key
          FROM ended WHERE cancel_requested_at IS NULL) AS kept
),
payloads AS (
    INSERT INTO awa.payloads (job_id, args) SELECT id, all_args FROM advanced WHERE args IS NULL
    ON CONFLICT (job_id) DO UPDATE SET args = excluded.args
),
unused_payloads AS (
    DELETE FROM awa.payloads
    WHERE job_id = ANY (ARRAY(SELECT id FROM ended WHERE args IS NULL AND id IN (SELECT id FROM advanced WHERE args IS NOT NULL)))
),
made_available AS (
    INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
    SELECT {carried}, run_at, errors, 0, lease FROM advanced WHERE run_at <= now()
),
made_scheduled AS (
    INSERT INTO awa.scheduled (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'scheduled', {carried}, run_at, errors, 0, lease FROM advanced WHERE run_at > now()
),
cancelled AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user', worker_id),
           attempt, lease, worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
notified AS MATERIALIZED (
    SELECT awa.wake(array_agg(DISTINCT queue) FILTER (WHERE run_at <= now()), min(run_at) FILTER (WHERE run_at > now()))
    FROM advanced
)
SELECT ended.id FROM ended CROSS JOIN notified
