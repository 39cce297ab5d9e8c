-- Claims within the limits of queues and concurrency keys.

CREATE SEQUENCE awa.claim_number;

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
