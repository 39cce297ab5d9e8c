-- What operators limit: jobs of a queue at once, jobs of a queue in a time, jobs of a key at once; and where jobs of a
-- kind go. A queue without limits, and a job without a key, are claimed as before.

ALTER TABLE awa.queues
    ADD max_workers      int         CONSTRAINT max_workers_is_positive CHECK (max_workers >= 1),  -- in the whole cluster
    ADD rate_jobs        int         CONSTRAINT rate_is_positive CHECK (rate_jobs >= 1),           -- so many …
    ADD rate_period      interval    CONSTRAINT rate_period_is_positive CHECK (rate_period > '0'),  -- … in that time
    ADD rate_tokens      float8      NOT NULL DEFAULT 1,     -- how many may be claimed, as of rate_refilled_at
    ADD rate_refilled_at timestamptz NOT NULL DEFAULT now(),
    ADD fair             boolean     NOT NULL DEFAULT false, -- keys take turns, however many jobs each has
    ADD aging            interval    CONSTRAINT aging_is_not_negative CHECK (aging >= '0'),        -- 0: off
    ADD throttled_until  timestamptz,                        -- nothing is claimed until then
    ADD throttled_at     timestamptz,                        -- when that began
    ADD throttle_reason  text,
    ADD throttles        int         NOT NULL DEFAULT 0 CONSTRAINT throttles_are_counted CHECK (throttles >= 0),
    ADD CONSTRAINT a_rate_has_a_period CHECK ((rate_jobs IS NULL) = (rate_period IS NULL));

-- How many jobs of a limited queue each worker may run: the leader's split of max_workers.
CREATE TABLE awa.slots (
    queue     text NOT NULL,
    worker_id uuid NOT NULL REFERENCES awa.workers (id) ON DELETE CASCADE,
    slots     int  NOT NULL CONSTRAINT slots_are_counted CHECK (slots >= 0),
    PRIMARY KEY (queue, worker_id)
);
CREATE INDEX slots_worker ON awa.slots (worker_id);

-- Where a job goes whose enqueuer names no queue, by its kind: a name, or the beginning of one and a star.
CREATE TABLE awa.routes (
    pattern    text        PRIMARY KEY CONSTRAINT pattern_is_a_kind
                           CHECK (length(pattern) BETWEEN 1 AND 200 AND strpos(left(pattern, -1), '*') = 0),
    queue      text        NOT NULL CONSTRAINT queue_is_a_name
                           CHECK (length(queue) BETWEEN 1 AND 200 AND queue !~ '[,[:cntrl:]]'),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- The queue of the route that fits best; NULL: none does.
CREATE FUNCTION awa.route(kind text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT queue FROM awa.routes
    WHERE pattern = kind OR (right(pattern, 1) = '*' AND starts_with(kind, left(pattern, -1)))
    ORDER BY pattern = kind DESC, length(pattern) DESC
    LIMIT 1
$$;

-- At most `concurrency_limit` jobs of a key run at once. Where they are `ordered`, it is one, in the order of their ids,
-- and one that has begun keeps its place until it has ended.
ALTER TABLE awa.scheduled ADD concurrency_key text COLLATE "C", ADD concurrency_limit smallint, ADD ordered boolean;
ALTER TABLE awa.ready     ADD concurrency_key text COLLATE "C", ADD concurrency_limit smallint, ADD ordered boolean;
ALTER TABLE awa.running   ADD concurrency_key text COLLATE "C", ADD concurrency_limit smallint, ADD ordered boolean;
ALTER TABLE awa.completed ADD concurrency_key text COLLATE "C", ADD concurrency_limit smallint, ADD ordered boolean;
ALTER TABLE awa.dead      ADD concurrency_key text COLLATE "C", ADD concurrency_limit smallint, ADD ordered boolean;
ALTER TABLE awa.scheduled
    ADD CONSTRAINT key_is_whole CHECK ((concurrency_key IS NULL) = (concurrency_limit IS NULL)
                                       AND (concurrency_key IS NULL) = (ordered IS NULL)),
    ADD CONSTRAINT key_is_a_name CHECK (length(concurrency_key) BETWEEN 1 AND 500),
    ADD CONSTRAINT concurrency_limit_is_positive CHECK (concurrency_limit >= 1 AND (NOT ordered OR concurrency_limit = 1));
ALTER TABLE awa.ready
    ADD CONSTRAINT key_is_whole CHECK ((concurrency_key IS NULL) = (concurrency_limit IS NULL)
                                       AND (concurrency_key IS NULL) = (ordered IS NULL)),
    ADD CONSTRAINT key_is_a_name CHECK (length(concurrency_key) BETWEEN 1 AND 500),
    ADD CONSTRAINT concurrency_limit_is_positive CHECK (concurrency_limit >= 1 AND (NOT ordered OR concurrency_limit = 1));

-- Jobs with a key stand in a line of their own: a key that is at its limit, whatever waits behind it, is passed by with
-- one look, and the others' claims never meet it.
DROP INDEX awa.ready_order;
CREATE UNIQUE INDEX ready_order ON awa.ready (queue, priority, pos) WHERE concurrency_key IS NULL;
CREATE UNIQUE INDEX ready_keyed_order ON awa.ready (queue, priority, pos) WHERE concurrency_key IS NOT NULL;
CREATE INDEX ready_keys ON awa.ready (queue, concurrency_key, priority, id) WHERE concurrency_key IS NOT NULL;
CREATE INDEX scheduled_ordered ON awa.scheduled (concurrency_key, id) WHERE ordered;

-- Since when a job waits at its priority: the leader moves up what has waited for too long.
ALTER TABLE awa.ready ADD entered_at timestamptz NOT NULL DEFAULT now();

-- Jobs that are counted have a number, in the order of their claims: those with a key, and those that were claimed while
-- their queue had max_workers.
CREATE SEQUENCE awa.claim_number;
ALTER TABLE awa.running
    ADD limited      boolean NOT NULL DEFAULT false,
    ADD claim_number bigint,
    ADD CONSTRAINT counted_jobs_have_a_number CHECK (claim_number IS NOT NULL OR NOT (limited OR concurrency_key IS NOT NULL));
CREATE INDEX running_limited ON awa.running (queue, claim_number) WHERE limited;
CREATE INDEX running_keyed ON awa.running (claim_number) WHERE concurrency_key IS NOT NULL;

-- Where counting begins: of what was claimed up to the mark, none runs but those that are known. Without it, each count
-- would go over all that has ended since somebody's forgotten transaction began. The newest mark of a scope is the valid
-- one, and the first that a look meets. A scope is a queue, or '' for the keys of all queues.
CREATE TABLE awa.claim_marks (
    scope text     COLLATE "C",
    mark  bigint,
    known bigint[] NOT NULL,
    PRIMARY KEY (scope, mark)
);

-- What runs of a queue and counts for its max_workers.
CREATE FUNCTION awa.running_of_queue(wanted_queue text) RETURNS TABLE (id bigint, claim_number bigint)
LANGUAGE sql STABLE AS $$
    WITH last AS MATERIALIZED (SELECT * FROM awa.claim_marks WHERE scope = wanted_queue ORDER BY mark DESC LIMIT 1)
    SELECT id, claim_number
    FROM awa.running
    WHERE limited AND queue = wanted_queue AND claim_number > coalesce((SELECT mark FROM last), 0)
    UNION ALL
    SELECT id, claim_number
    FROM (SELECT * FROM awa.running WHERE id = ANY ((SELECT known FROM last)::bigint[]) OFFSET 0) AS old  -- by id, that is
    WHERE limited AND queue = wanted_queue AND claim_number <= (SELECT mark FROM last)
$$;

-- What runs and has a key.
CREATE FUNCTION awa.running_with_key() RETURNS TABLE (id bigint, claim_number bigint, concurrency_key text)
LANGUAGE sql STABLE AS $$
    WITH last AS MATERIALIZED (SELECT * FROM awa.claim_marks WHERE scope = '' ORDER BY mark DESC LIMIT 1)
    SELECT id, claim_number, concurrency_key
    FROM awa.running
    WHERE concurrency_key IS NOT NULL AND claim_number > coalesce((SELECT mark FROM last), 0)
    UNION ALL
    SELECT id, claim_number, concurrency_key
    FROM (SELECT * FROM awa.running WHERE id = ANY ((SELECT known FROM last)::bigint[]) OFFSET 0) AS old
    WHERE concurrency_key IS NOT NULL AND claim_number <= (SELECT mark FROM last)
$$;

-- Waits for the claims of a scope that are under way, and keeps others off until the transaction ends.
CREATE FUNCTION awa.lock_scope(scope text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtext('awa' || ':limits'), hashtext(scope))
$$;

-- Moves the mark of a scope that the caller has locked, where much was claimed since. The latest stay above it: most of
-- them end soon, and need not be known.
CREATE FUNCTION awa.move_mark(wanted_scope text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    latest CONSTANT bigint := 2000;
    upto   CONSTANT bigint := (SELECT last_value FROM awa.claim_number) - latest;
    last            awa.claim_marks;
BEGIN
    SELECT * INTO last FROM awa.claim_marks WHERE scope = wanted_scope ORDER BY mark DESC LIMIT 1;
    IF upto <= coalesce(last.mark + 2 * cardinality(last.known), 0) + latest THEN
        RETURN;
    END IF;
    INSERT INTO awa.claim_marks (scope, mark, known)
    VALUES (wanted_scope, upto,
            CASE WHEN wanted_scope = '' THEN ARRAY(SELECT id FROM awa.running_with_key() WHERE claim_number <= upto)
                 ELSE ARRAY(SELECT id FROM awa.running_of_queue(wanted_scope) WHERE claim_number <= upto) END);
    DELETE FROM awa.claim_marks WHERE scope = wanted_scope AND mark = last.mark;
END $$;

-- Counts jobs of a queue that were claimed before it had max_workers. How many there were, of `most`.
CREATE FUNCTION awa.count_in(wanted_queue text, most int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    counted int;
BEGIN
    PERFORM awa.lock_scope(wanted_queue);
    UPDATE awa.running
    SET limited = true, claim_number = nextval('awa.claim_number')
    WHERE id = ANY (ARRAY(SELECT id FROM awa.running
                          WHERE queue = wanted_queue AND NOT limited
                          LIMIT most
                          FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS counted = ROW_COUNT;
    RETURN counted;
END $$;

CREATE OR REPLACE VIEW awa.jobs AS
    SELECT id, kind, queue, state, priority, attempt, max_attempts, args, run_at, created_at,
           NULL::timestamptz AS attempted_at, NULL::timestamptz AS finalized_at, NULL::timestamptz AS heartbeat_at,
           expires_at AS deadline_at, NULL::uuid AS worker_id, lease, errors, progress, NULL::jsonb AS result,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL::timestamptz AS cancel_requested_at,
           concurrency_key, concurrency_limit, ordered
    FROM awa.scheduled
    UNION ALL
    SELECT id, kind, queue, 'available', priority, attempt, max_attempts, args, run_at, created_at,
           NULL, NULL, NULL,
           expires_at, NULL, lease, errors, progress, NULL,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL,
           concurrency_key, concurrency_limit, ordered
    FROM awa.ready
    UNION ALL
    SELECT id, kind, queue, 'running', priority, attempt, max_attempts, args, run_at, created_at,
           attempted_at, NULL, heartbeat_at,
           deadline_at, worker_id, lease, errors, progress, NULL,
           tags, metadata, unique_key, parent_id, timeout, rescues, cancel_requested_at,
           concurrency_key, concurrency_limit, ordered
    FROM awa.running
    UNION ALL
    SELECT id, kind, queue, 'completed', priority, attempt, max_attempts, args, run_at, created_at,
           attempted_at, finalized_at, NULL,
           expires_at, worker_id, lease, errors, progress, result,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL,
           concurrency_key, concurrency_limit, ordered
    FROM awa.completed
    UNION ALL
    SELECT id, kind, queue, state, priority, attempt, max_attempts, args, run_at, created_at,
           attempted_at, finalized_at, NULL,
           expires_at, worker_id, lease, errors, progress, NULL,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL,
           concurrency_key, concurrency_limit, ordered
    FROM awa.dead;

-- Takes jobs of one queue within all limits: ready → running, with a new lease. The caller's part of the queue's
-- max_workers is the caller's business; the whole is kept here, as are the rate and the keys.
--   above: the position above which each priority is scanned · slack: so far below the last that it takes in line the
--   next claim begins · most: how many at the most · claimer: the worker's id
--   elsewhere: jobs that may be taken too: found by find_overlooked_jobs, or passed by before
-- Answers a row for each job, as it was before; and at last one without id where there is something to say, in its args:
--   short: few of those that it looked at have room, less than a quarter of what it was asked for
--   waited_s: how long it waited for its turn, where it is less than half
--   search: it is worth it before each claim, since keys take turns
--   passed_by: jobs that it looked at and left, and that the next claim does not see
--
-- Claims of a scope come one after another: who has waited sees what the one before has taken, since each statement of a
-- function has a snapshot of its own. So nothing there may take long, whatever lies in the indexes: what has to be looked
-- for is looked for before. A large claim comes to the keys with its candidates in hand: their rows are locked, and another
-- claim's are others. A small one takes its turn first, so that none goes past what it looks at and leaves. Those that are
-- not taken are free again when the claim ends.
CREATE FUNCTION awa.claim_within_limits(
    wanted_queue text, above bigint[], slack int, most int, kinds text[], claimer uuid, elsewhere bigint[]
) RETURNS SETOF awa.ready LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_nestloop = off SET enable_hashjoin = on  -- jobs and counts of keys are joined by a hash table, however many
AS $$
#variable_conflict use_column
DECLARE
    large      CONSTANT int := 50;
    to_see              int;
    q                   awa.queues;
    keyed               boolean;
    asked_at            timestamptz;
    waited              interval := '0';
    candidates          tid[];
    lowest              bigint;  -- of their positions
    chosen              tid[];
    passed_by           bigint[];
    moment              timestamptz;
    tokens              float8;
    note                awa.ready;
BEGIN
    SELECT * INTO q FROM awa.queues WHERE name = wanted_queue;
    IF q.max_workers IS NOT NULL OR q.rate_jobs IS NOT NULL THEN
        PERFORM awa.lock_scope(wanted_queue);
        SELECT * INTO q FROM awa.queues WHERE name = wanted_queue;
    END IF;
    IF (q.paused AND q.paused_until > now() IS NOT FALSE) OR q.throttled_until > now() THEN
        RETURN;
    END IF;
    IF q.max_workers IS NOT NULL THEN
        PERFORM awa.move_mark(wanted_queue);
        most := least(most, q.max_workers - (SELECT count(*) FROM awa.running_of_queue(wanted_queue)));
    END IF;
    IF q.rate_jobs IS NOT NULL THEN
        moment := clock_timestamp();
        tokens := awa.refilled(q.rate_tokens, q.rate_jobs / extract(epoch FROM q.rate_period)::float8,
                               moment - q.rate_refilled_at);
        most := least(most, floor(tokens));
    END IF;
    IF most <= 0 THEN
        RETURN;
    END IF;
    to_see := most + greatest(most / 4, 50);

    -- Keys are shared by all queues, and have a lock of their own.
    IF most < large
       AND (EXISTS (SELECT FROM awa.ready WHERE id = ANY (elsewhere) AND concurrency_key IS NOT NULL)
            OR EXISTS (SELECT
                       FROM unnest('{1,2,3,4}'::smallint[], above) AS level(priority, above)
                       CROSS JOIN LATERAL (SELECT FROM awa.ready
                                           WHERE queue = wanted_queue AND priority = level.priority
                                             AND pos > level.above AND concurrency_key IS NOT NULL
                                           ORDER BY pos LIMIT 1) AS head)) THEN
        asked_at := clock_timestamp();
        PERFORM awa.lock_scope('');
        waited := clock_timestamp() - asked_at;
    END IF;
    SELECT coalesce(array_agg(place), '{}'), coalesce(bool_or(has_key), false), min(pos)
    INTO candidates, keyed, lowest
    FROM (SELECT *
          FROM (SELECT ctid AS place, pos, concurrency_key IS NOT NULL AS has_key
                FROM awa.ready
                WHERE id = ANY (elsewhere) AND queue = wanted_queue
                  AND kind = ANY (kinds) AND (expires_at IS NULL OR expires_at > now())
                FOR UPDATE SKIP LOCKED) AS from_elsewhere
          UNION ALL
          (SELECT head.ctid, head.pos, true
           FROM unnest('{1,2,3,4}'::smallint[], above) AS level(priority, above)
           CROSS JOIN LATERAL (
               SELECT ready.ctid, pos
               FROM awa.ready
               WHERE queue = wanted_queue AND priority = level.priority AND pos > level.above
                 AND concurrency_key IS NOT NULL
                 AND kind = ANY (kinds) AND (expires_at IS NULL OR expires_at > now())
               ORDER BY pos
               LIMIT to_see
               FOR UPDATE SKIP LOCKED
           ) AS head
           LIMIT to_see)
          UNION ALL
          (SELECT head.ctid, head.pos, false
           FROM unnest('{1,2,3,4}'::smallint[], above) AS level(priority, above)
           CROSS JOIN LATERAL (
               SELECT ready.ctid, pos
               FROM awa.ready
               WHERE queue = wanted_queue AND priority = level.priority AND pos > level.above
                 AND concurrency_key IS NULL
                 AND kind = ANY (kinds) AND (expires_at IS NULL OR expires_at > now())
               ORDER BY pos
               LIMIT most
               FOR UPDATE SKIP LOCKED
           ) AS head
           LIMIT most)) AS in_hand;
    IF keyed THEN
        asked_at := clock_timestamp();
        PERFORM awa.lock_scope('');
        waited := waited + (clock_timestamp() - asked_at);
        PERFORM awa.move_mark('');
    END IF;

    WITH
    busy AS (
        SELECT concurrency_key AS key, count(*) AS jobs FROM awa.running_with_key() WHERE keyed GROUP BY concurrency_key
    ),
    -- Where each stands in the line of its key, behind what runs. Those without a key have a line as if it were one.
    ranked AS (
        SELECT ready.ctid, id, priority, pos, concurrency_key AS key, concurrency_limit AS most_of_key, ordered,
               coalesce(busy.jobs, 0) + row_number() OVER (PARTITION BY concurrency_key ORDER BY priority, id) AS nth
        FROM awa.ready LEFT JOIN busy ON busy.key = concurrency_key
        WHERE ready.ctid = ANY (candidates)
    ),
    first AS (
        SELECT ctid, id, priority, pos
        FROM ranked
        WHERE key IS NULL
           OR nth <= most_of_key
              -- Of an ordered key it is the first, or none; and one that has begun keeps its place.
              AND (NOT ordered
                   OR id = (SELECT id FROM awa.ready WHERE queue = wanted_queue AND concurrency_key = ranked.key
                            ORDER BY priority, id LIMIT 1)
                      AND NOT EXISTS (SELECT FROM awa.scheduled s
                                      WHERE s.concurrency_key = ranked.key AND s.ordered AND s.id < ranked.id
                                        AND s.lease > 0))
        ORDER BY priority, CASE WHEN q.fair THEN nth END, pos
        LIMIT most
    )
    SELECT coalesce(array_agg(ctid), '{}'),
           ARRAY[greatest(above[1], max(pos) FILTER (WHERE priority = 1 AND in_line) - slack),
                 greatest(above[2], max(pos) FILTER (WHERE priority = 2 AND in_line) - slack),
                 greatest(above[3], max(pos) FILTER (WHERE priority = 3 AND in_line) - slack),
                 greatest(above[4], max(pos) FILTER (WHERE priority = 4 AND in_line) - slack)]
    INTO chosen, above
    FROM (SELECT *, id NOT IN (SELECT unnest(elsewhere)) AS in_line FROM first) AS first;

    RETURN QUERY
    WITH
    gone AS (
        DELETE FROM awa.ready WHERE ctid = ANY (chosen) RETURNING *
    ),
    claimed AS (
        INSERT INTO awa.running (id, created_at, run_at, expires_at, timeout, parent_id, lease, priority, attempt,
                                 max_attempts, rescues, kind, queue, args, metadata, tags, unique_key, errors,
                                 progress, concurrency_key, concurrency_limit, ordered, worker_id, deadline_at,
                                 limited, claim_number)
        SELECT id, created_at, run_at, expires_at, timeout, parent_id, lease + 1, priority, attempt + 1,
               max_attempts, rescues, kind, queue, args, metadata, tags, unique_key, errors, progress,
               concurrency_key, concurrency_limit, ordered, claimer,
               least(now() + coalesce(timeout, q.timeout), expires_at), q.max_workers IS NOT NULL,
               CASE WHEN q.max_workers IS NOT NULL OR concurrency_key IS NOT NULL
                    THEN nextval('awa.claim_number') END
        FROM gone
    ),
    paid AS (
        UPDATE awa.queues
        SET rate_tokens = tokens - (SELECT count(*) FROM gone), rate_refilled_at = moment
        WHERE name = wanted_queue AND tokens IS NOT NULL
    )
    SELECT * FROM gone;

    IF q.fair THEN
        note.args := '{"search": true}';
    ELSIF 2 * cardinality(chosen) < most THEN
        note.args := jsonb_build_object('short', 4 * cardinality(chosen) < most, 'waited_s', extract(epoch FROM waited));
    END IF;
    IF keyed AND lowest <= greatest(above[1], above[2], above[3], above[4]) THEN
        passed_by := ARRAY(SELECT id FROM awa.ready WHERE ctid = ANY (candidates) AND pos <= above[priority]);
        IF passed_by <> '{}' THEN
            note.args := coalesce(note.args, '{}') || jsonb_build_object('passed_by', passed_by);
        END IF;
    END IF;
    IF note.args IS NOT NULL THEN
        RETURN NEXT note;
    END IF;
END $$;

-- The tokens of a bucket that had so many that long ago. It holds what comes in a second, and two at the least, so that
-- none is lost while nobody looks; and not more, so that a rest is not made up for.
CREATE FUNCTION awa.refilled(tokens float8, per_second float8, ago interval) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(2, per_second), tokens + greatest(0, extract(epoch FROM ago)::float8) * per_second)
$$;

-- Ends attempts that failed: back to scheduled by the queue's backoff curve, or by `delays` where one is given;
-- to dead where the attempts are used up, where the job's deadline comes first, or where somebody asked to cancel
-- it. The lease guards each row, and the `holder`, where one is given: the worker that ran the attempts.
DROP FUNCTION awa.fail_attempts(bigint[], int[], text[], interval[], boolean);
CREATE FUNCTION awa.fail_attempts(
    ids bigint[], leases int[], error_texts text[], delays interval[], crashed boolean, holder uuid DEFAULT NULL
) RETURNS TABLE (id bigint, lease int, queue text, kind text, attempt smallint, max_attempts smallint,
                 retry_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- By id, since a join with the arrays would turn into a loop over the whole table, for each of them, where vacuum has
    -- last seen the table empty.
    lease_of jsonb := jsonb_object(ids::text[], leases::text[]);
    error_of jsonb := jsonb_object(ids::text[], error_texts);
    delay_of jsonb := jsonb_object(ids::text[], delays::text[]);
BEGIN
    RETURN QUERY
    WITH ended AS (
        DELETE FROM awa.running
        WHERE id = ANY (ids) AND lease = (lease_of ->> id::text)::int AND (holder IS NULL OR worker_id = holder)
        RETURNING *, error_of ->> id::text AS error, (delay_of ->> id::text)::interval AS delay
    ),
    judged AS MATERIALIZED (
        SELECT ended.*, now() + CASE
                   WHEN ended.delay IS NOT NULL THEN ended.delay
                   ELSE greatest(
                       CASE WHEN q.backoff_enabled IS FALSE THEN interval '0'
                            -- In seconds: an interval times 2^30 may be more than an interval can hold.
                            ELSE make_interval(secs => least(
                                extract(epoch FROM coalesce(q.backoff_base, '1 second'))::float8
                                * 2 ^ least(ended.attempt - 1, 30),
                                extract(epoch FROM coalesce(q.backoff_max, '1 hour'))::float8)) END,
                       CASE WHEN crashed THEN interval '1 second' ELSE interval '0' END)
               END AS next_run
        FROM ended LEFT JOIN awa.queues q ON q.name = ended.queue
    ),
    fated AS MATERIALIZED (
        SELECT *, attempt < max_attempts AND expires_at > next_run IS NOT FALSE
                  AND cancel_requested_at IS NULL AS again
        FROM judged
    ),
    retried AS (
        INSERT INTO awa.scheduled (state, id, created_at, run_at, expires_at, timeout, parent_id, lease, priority,
                                   attempt, max_attempts, rescues, kind, queue, args, metadata, tags, unique_key,
                                   errors, progress, concurrency_key, concurrency_limit, ordered)
        SELECT 'retryable', id, created_at, next_run, expires_at, timeout, parent_id, lease, priority,
               attempt, max_attempts, rescues + crashed::int, kind, queue, args, metadata, tags, unique_key,
               awa.with_error(errors, attempt, error), progress, concurrency_key, concurrency_limit, ordered
        FROM fated WHERE again
    ),
    failed AS (
        INSERT INTO awa.dead (state, id, created_at, run_at, expires_at, timeout, parent_id, lease, priority,
                              attempt, max_attempts, rescues, kind, queue, args, metadata, tags, unique_key,
                              errors, progress, concurrency_key, concurrency_limit, ordered, worker_id,
                              attempted_at)
        SELECT CASE WHEN cancel_requested_at IS NULL THEN 'failed' ELSE 'cancelled' END,
               id, created_at, run_at, expires_at, timeout, parent_id, lease, priority,
               attempt, max_attempts, rescues + crashed::int, kind, queue, args, metadata, tags, unique_key,
               awa.with_error(errors, attempt,
                              CASE WHEN cancel_requested_at IS NULL THEN error ELSE 'cancelled by user' END),
               progress, concurrency_key, concurrency_limit, ordered, worker_id, attempted_at
        FROM fated WHERE NOT again
    ),
    woken AS MATERIALIZED (SELECT awa.wake(NULL, min(next_run)) FROM fated WHERE again)
    SELECT fated.id, fated.lease, fated.queue, fated.kind, fated.attempt, fated.max_attempts,
           CASE WHEN fated.again THEN fated.next_run END
    FROM fated CROSS JOIN woken;
END $$;

-- Enqueueing answers one column more, and takes three: both functions are made anew, and whoever might call them still may.
CREATE TEMPORARY TABLE kept_grants ON COMMIT DROP AS
    SELECT pg_proc.proname AS name, CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END AS grantee
    FROM pg_proc CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner))) AS given
    WHERE pronamespace = '"awa"'::regnamespace AND proname IN ('enqueue', 'enqueue_many');
DROP FUNCTION awa.enqueue(text, jsonb, text, int, timestamptz, interval, int, interval, timestamptz, text[], jsonb, bigint,
                          text, interval, text[]);
DROP FUNCTION awa.enqueue_many(jsonb);

-- Enqueues a JSON array of objects, each with `kind` and what it wants to set of: args, queue, priority, run_at,
-- delay, max_attempts, timeout, deadline, tags, metadata, parent_id, unique_key, unique_for, unique_states,
-- concurrency_key, concurrency_limit, ordered. Without a queue it goes where a route leads, else to `usual_queue`.
-- Answers a row an object, in its order (n); is_new is false where a unique key was held, and id names the holder.
CREATE FUNCTION awa.enqueue_many(jobs jsonb)
RETURNS TABLE (n bigint, id bigint, is_new boolean, state text, run_at timestamptz, created_at timestamptz, queue text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT j.n, nextval('awa.job_id') AS new_id, j.kind,
               coalesce(j.queue, awa.route(j.kind), j.usual_queue, 'default') AS queue,
               coalesce(j.priority, 2::smallint) AS priority, coalesce(j.args, '{}') AS args,
               coalesce(j.run_at, now() + coalesce(j.delay, '0')) AS run_at,
               coalesce(j.max_attempts, 25::smallint) AS max_attempts, j.timeout, j.deadline, j.tags, j.metadata,
               j.parent_id, j.unique_key, j.unique_for, j.concurrency_key,
               CASE WHEN j.concurrency_key IS NOT NULL THEN coalesce(j.concurrency_limit, 1::smallint) END AS concurrency_limit,
               CASE WHEN j.concurrency_key IS NOT NULL THEN coalesce(j.ordered, false) END AS ordered,
               coalesce(j.unique_states, '{scheduled,available,running,retryable,waiting}') AS unique_states
        FROM ROWS FROM (jsonb_to_recordset(jobs) AS (
                 kind text, queue text, priority smallint, args jsonb, run_at timestamptz, delay interval,
                 max_attempts smallint, timeout interval, deadline timestamptz, tags text[], metadata jsonb,
                 parent_id bigint, unique_key text, unique_for interval, unique_states text[],
                 concurrency_key text, concurrency_limit smallint, ordered boolean, usual_queue text))
             WITH ORDINALITY AS j(kind, queue, priority, args, run_at, delay, max_attempts, timeout, deadline,
                                  tags, metadata, parent_id, unique_key, unique_for, unique_states,
                                  concurrency_key, concurrency_limit, ordered, usual_queue, n)
    ),
    -- Keys are taken in their order, so that two callers with the same keys cannot deadlock; and each once.
    keyed AS MATERIALIZED (
        SELECT sorted.unique_key,
               awa.hold_unique_key(sorted.unique_key, sorted.new_id, sorted.unique_for, sorted.unique_states) AS holder
        FROM (SELECT DISTINCT ON (unique_key) unique_key, new_id, unique_for, unique_states
              FROM input WHERE unique_key IS NOT NULL ORDER BY unique_key, n OFFSET 0) AS sorted
    ),
    judged AS MATERIALIZED (
        SELECT input.*, coalesce(keyed.holder, input.new_id) AS holder
        FROM input LEFT JOIN keyed USING (unique_key)
    ),
    now_ready AS (
        INSERT INTO awa.ready (id, kind, queue, priority, args, run_at, max_attempts, timeout, expires_at, tags,
                               metadata, parent_id, unique_key, concurrency_key, concurrency_limit, ordered)
        SELECT new_id, kind, queue, priority, args, run_at, max_attempts, timeout, deadline, tags,
               metadata, parent_id, unique_key, concurrency_key, concurrency_limit, ordered
        FROM judged WHERE holder = new_id AND run_at <= now() ORDER BY n
    ),
    for_later AS (
        INSERT INTO awa.scheduled (state, id, kind, queue, priority, args, run_at, max_attempts, timeout, expires_at,
                                   tags, metadata, parent_id, unique_key, concurrency_key, concurrency_limit, ordered)
        SELECT 'scheduled', new_id, kind, queue, priority, args, run_at, max_attempts, timeout, deadline,
               tags, metadata, parent_id, unique_key, concurrency_key, concurrency_limit, ordered
        FROM judged WHERE holder = new_id AND run_at > now()
    ),
    woken AS MATERIALIZED (
        SELECT awa.wake(array_agg(DISTINCT queue) FILTER (WHERE run_at <= now()),
                        min(run_at) FILTER (WHERE run_at > now()))
        FROM judged WHERE holder = new_id
    )
    SELECT judged.n, holder, holder = new_id,
           CASE WHEN run_at <= now() THEN 'available' ELSE 'scheduled' END, run_at, now(), queue
    FROM judged, woken ORDER BY n;
END $$;

-- Enqueues one job, in the caller's transaction. Returns its id, or the id of the job that holds its unique key.
CREATE FUNCTION awa.enqueue(
    kind text, args jsonb DEFAULT '{}', queue text DEFAULT NULL, priority int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, max_attempts int DEFAULT NULL,
    timeout interval DEFAULT NULL, deadline timestamptz DEFAULT NULL, tags text[] DEFAULT NULL,
    metadata jsonb DEFAULT NULL, parent_id bigint DEFAULT NULL, unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL, unique_states text[] DEFAULT NULL, concurrency_key text DEFAULT NULL,
    concurrency_limit int DEFAULT NULL, ordered boolean DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    SELECT id FROM awa.enqueue_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'kind', kind, 'queue', queue, 'priority', priority, 'run_at', run_at, 'delay', delay,
        'max_attempts', max_attempts, 'timeout', timeout, 'deadline', deadline, 'tags', tags,
        'parent_id', parent_id, 'unique_key', unique_key, 'unique_for', unique_for, 'unique_states', unique_states,
        'concurrency_key', concurrency_key, 'concurrency_limit', concurrency_limit, 'ordered', ordered))
        || jsonb_build_object('args', args, 'metadata', metadata)))
$$;

REVOKE EXECUTE ON FUNCTION awa.enqueue, awa.enqueue_many FROM PUBLIC;
DO $$
DECLARE
    kept record;
BEGIN
    FOR kept IN SELECT name, grantee FROM kept_grants LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %I.%I TO %s', 'awa', kept.name, kept.grantee);
    END LOOP;
END $$;
