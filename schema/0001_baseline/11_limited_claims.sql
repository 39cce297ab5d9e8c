-- Claims within the limits of queues and concurrency keys. They count what is in `running`, under a lock: there is no
-- counter that could drift.

-- Jobs that count towards a limit get a number when they are claimed, in order.
CREATE SEQUENCE awa.claim_number;

-- Where a count starts: of the jobs with a number up to `mark`, only those in `known` still run. Without it, each count
-- would walk over all index entries of jobs that ended since the oldest snapshot. The newest mark of a scope is the valid
-- one. A scope is a queue, or '' for the concurrency keys of all queues.
CREATE TABLE awa.claim_marks (
    scope text     COLLATE "C",
    mark  bigint   CONSTRAINT mark_is_counted CHECK (mark BETWEEN 0 AND 1000000000000000000),
    known bigint[] NOT NULL,
    PRIMARY KEY (scope, mark)
);

-- Return the running jobs of a queue that count towards its max_workers.
CREATE FUNCTION awa.running_of_queue(wanted_queue text) RETURNS TABLE (id bigint, claim_number bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH last AS MATERIALIZED (SELECT * FROM awa.claim_marks WHERE scope = wanted_queue ORDER BY mark DESC LIMIT 1)
    SELECT id, claim_number
    FROM awa.running
    WHERE limited AND queue = wanted_queue AND claim_number > coalesce((SELECT mark FROM last), 0)
    UNION ALL
    SELECT id, claim_number
    FROM (SELECT * FROM awa.running WHERE id = ANY ((SELECT known FROM last)::bigint[])
          OFFSET 0) AS known  -- OFFSET 0 keeps the conditions below out of the index scan: it goes by id
    WHERE limited AND queue = wanted_queue AND claim_number <= (SELECT mark FROM last);
END;

-- Return the running jobs that have a concurrency key.
CREATE FUNCTION awa.running_with_key() RETURNS TABLE (id bigint, claim_number bigint, concurrency_key text)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH last AS MATERIALIZED (SELECT * FROM awa.claim_marks WHERE scope = '' ORDER BY mark DESC LIMIT 1)
    SELECT id, claim_number, concurrency_key
    FROM awa.running
    WHERE concurrency_key IS NOT NULL AND claim_number > coalesce((SELECT mark FROM last), 0)
    UNION ALL
    SELECT id, claim_number, concurrency_key
    FROM (SELECT * FROM awa.running WHERE id = ANY ((SELECT known FROM last)::bigint[]) OFFSET 0) AS known
    WHERE concurrency_key IS NOT NULL AND claim_number <= (SELECT mark FROM last);
END;

-- The rows that claims lock, one for each scope. Not advisory locks: every login can hold those.
CREATE TABLE awa.claim_locks (
    scope text COLLATE "C" PRIMARY KEY
);

-- Wait for other claims of a scope, and lock it until the transaction ends.
CREATE FUNCTION awa.lock_limits(wanted_scope text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOOP
        PERFORM FROM awa.claim_locks WHERE scope = wanted_scope FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO awa.claim_locks (scope) VALUES (wanted_scope) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Advance the mark of a scope that the caller has locked, if many jobs were claimed since. The latest 2,000 jobs stay
-- behind it: most of them end soon and need not be in `known`.
CREATE FUNCTION awa.advance_claim_mark(wanted_scope text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    latest   CONSTANT bigint := 2000;
    new_mark CONSTANT bigint := (SELECT last_value FROM awa.claim_number) - latest;
    last              awa.claim_marks;
BEGIN
    SELECT * INTO last FROM awa.claim_marks WHERE scope = wanted_scope ORDER BY mark DESC LIMIT 1;
    IF new_mark <= coalesce(last.mark + 2 * cardinality(last.known), 0) + latest THEN
        RETURN;
    END IF;
    INSERT INTO awa.claim_marks (scope, mark, known)
    VALUES (wanted_scope, new_mark,
            CASE WHEN wanted_scope = '' THEN ARRAY(SELECT id FROM awa.running_with_key() WHERE claim_number <= new_mark)
                 ELSE ARRAY(SELECT id FROM awa.running_of_queue(wanted_scope) WHERE claim_number <= new_mark) END);
    DELETE FROM awa.claim_marks WHERE scope = wanted_scope AND mark = last.mark;
END $$;

-- Count jobs towards max_workers that were claimed before their queue had it. Return how many, at most `max_jobs`.
CREATE FUNCTION awa.mark_running_jobs(wanted_queue text, max_jobs int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    marked int;
BEGIN
    PERFORM awa.lock_limits(wanted_queue);
    UPDATE awa.running
    SET limited = true, claim_number = nextval('awa.claim_number')
    WHERE id = ANY (ARRAY(SELECT id FROM awa.running
                          WHERE queue = wanted_queue AND NOT limited
                          LIMIT max_jobs
                          FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS marked = ROW_COUNT;
    RETURN marked;
END $$;

-- Return the tokens of a bucket that had `tokens` some time ago. It holds the tokens of one second, at least two, so that
-- none is lost between two claims, and not more, so that a pause is not made up for.
CREATE FUNCTION awa.refilled_tokens(tokens float8, per_second float8, ago interval)
RETURNS float8 LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT least(greatest(2, per_second), tokens + greatest(0, extract(epoch FROM ago)::float8) * per_second);
END;

-- Claim jobs of one queue within max_workers, the rate and the limits of concurrency keys: available → running.
--   after_positions: one for each priority; the scan starts behind it · max_jobs · kinds: those that the worker can run
--   claimer: the worker's id · found_ids: jobs that find_skipped_jobs found; they are claimed too if they have room
-- Returns each job as it was before the claim, and when its lease began. `search` is true if other keys may have jobs that this claim did not see.
--
-- Claims wait for each other on the row of their scope. Each statement of a function has its own snapshot, so the count behind
-- the lock includes what the previous claim committed: the limits are exact. Everything behind the lock must be short,
-- whatever the indexes contain; that is why the search runs before the claim, without a lock.
-- Rows that another transaction has locked are skipped, so no lock is ever waited for while the row of a scope is locked.
CREATE FUNCTION awa.claim_within_limits(
    wanted_queue text, after_positions bigint[], max_jobs int, kinds text[], claimer uuid, found_ids bigint[]
) RETURNS TABLE (job awa.ready, claimed_at timestamptz, search boolean) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_nestloop = off SET enable_hashjoin = on  -- jobs are joined with the counts of their keys
AS $$
#variable_conflict use_column
DECLARE
    q         awa.queues;
    allowed   int := max_jobs;
    keyed     boolean;
    refilled  timestamptz;
    tokens    float8;
BEGIN
    SELECT * INTO q FROM awa.queues WHERE name = wanted_queue;
    IF q.max_workers IS NOT NULL OR q.rate_jobs IS NOT NULL THEN
        PERFORM awa.lock_limits(wanted_queue);
        SELECT * INTO q FROM awa.queues WHERE name = wanted_queue;
    END IF;
    IF (q.paused AND q.paused_until > now() IS NOT FALSE) OR q.throttled_until > now() THEN
        RETURN;
    END IF;
    IF q.max_workers IS NOT NULL THEN
        PERFORM awa.advance_claim_mark(wanted_queue);
        allowed := least(allowed, q.max_workers - (SELECT count(*) FROM awa.running_of_queue(wanted_queue)));
    END IF;
    IF q.rate_jobs IS NOT NULL THEN
        refilled := clock_timestamp();
        tokens := awa.refilled_tokens(q.rate_tokens, q.rate_jobs / extract(epoch FROM q.rate_period)::float8,
                                      refilled - q.rate_refilled_at);
        allowed := least(allowed, greatest(floor(tokens), 0));
    END IF;
    IF allowed <= 0 THEN
        RETURN;
    END IF;

    -- Keys are shared by all queues and have one lock. A queue without keyed jobs does not take it.
    keyed := EXISTS (SELECT FROM awa.ready WHERE id = ANY (found_ids) AND concurrency_key IS NOT NULL)
             OR EXISTS (SELECT
                        FROM unnest('{1,2,3,4}'::smallint[], after_positions) AS level(priority, after_position)
                        CROSS JOIN LATERAL (SELECT FROM awa.ready
                                            WHERE queue = wanted_queue AND priority = level.priority
                                              AND pos > level.after_position AND concurrency_key IS NOT NULL
                                            ORDER BY pos LIMIT 1) AS head);
    IF keyed THEN
        PERFORM awa.lock_limits('');
        PERFORM awa.advance_claim_mark('');
    END IF;

    RETURN QUERY
    WITH written AS MATERIALIZED (SELECT clock_timestamp() AS at),  -- now() is older than the wait for the locks
    in_line AS MATERIALIZED (
        (SELECT head.*
         FROM unnest('{1,2,3,4}'::smallint[], after_positions) AS level(priority, after_position)
         CROSS JOIN LATERAL (
             SELECT ready.ctid, id, priority, pos, concurrency_key, concurrency_limit, ordered
             FROM awa.ready
             WHERE queue = wanted_queue AND priority = level.priority AND pos > level.after_position
               AND concurrency_key IS NOT NULL
               AND kind = ANY (kinds) AND (expires_at IS NULL OR expires_at > now())
             ORDER BY pos
             LIMIT greatest(200, allowed + allowed / 4)  -- some of them have no room
         ) AS head
         WHERE keyed
         LIMIT greatest(200, allowed + allowed / 4))
        UNION ALL
        (SELECT head.*
         FROM unnest('{1,2,3,4}'::smallint[], after_positions) AS level(priority, after_position)
         CROSS JOIN LATERAL (
             SELECT ready.ctid, id, priority, pos, concurrency_key, concurrency_limit, ordered
             FROM awa.ready
             WHERE queue = wanted_queue AND priority = level.priority AND pos > level.after_position
               AND concurrency_key IS NULL
               AND kind = ANY (kinds) AND (expires_at IS NULL OR expires_at > now())
             ORDER BY pos
             LIMIT allowed
         ) AS head
         LIMIT allowed)
    ),
    candidates AS (
        SELECT * FROM in_line
        UNION ALL
        SELECT ready.ctid, id, priority, pos, concurrency_key, concurrency_limit, ordered
        FROM awa.ready
        WHERE id = ANY (found_ids) AND queue = wanted_queue AND (keyed OR concurrency_key IS NULL)
          AND kind = ANY (kinds) AND (expires_at IS NULL OR expires_at > now())
          AND id NOT IN (SELECT id FROM in_line)
    ),
    running AS (
        SELECT concurrency_key AS key, count(*) AS jobs FROM awa.running_with_key() WHERE keyed GROUP BY concurrency_key
    ),
    -- `place` is the job's place in the line of its key, behind the jobs that run. Jobs without a key have one line.
    ranked AS (
        SELECT candidates.*, coalesce(running.jobs, 0)
                             + row_number() OVER (PARTITION BY concurrency_key ORDER BY priority, id) AS place
        FROM candidates LEFT JOIN running ON running.key = concurrency_key
    ),
    chosen AS (
        SELECT ctid
        FROM ranked
        WHERE concurrency_key IS NULL
           OR place <= concurrency_limit
              -- The first job of an ordered key runs next, and an earlier job that waits for its retry blocks the key.
              AND (NOT ordered
                   OR id = (SELECT id FROM awa.ready
                            WHERE queue = wanted_queue AND concurrency_key = ranked.concurrency_key
                            ORDER BY priority, id LIMIT 1)
                      AND NOT EXISTS (SELECT FROM awa.scheduled s
                                      WHERE s.concurrency_key = ranked.concurrency_key AND s.ordered
                                        AND s.id < ranked.id AND s.lease > 0))
        ORDER BY priority, CASE WHEN q.fair THEN place END, pos
        LIMIT allowed
    ),
    deleted AS (
        DELETE FROM awa.ready
        WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM chosen))
                                FOR UPDATE SKIP LOCKED))
        RETURNING *, ready AS job
    ),
    durable AS MATERIALIZED (  -- see claim_jobs
        SELECT awa.commit_durably() WHERE EXISTS (SELECT FROM deleted WHERE rescues > 0 OR q.durable_claims)
    ),
    inserted AS (
        INSERT INTO awa.running ({carried}, run_at, errors, attempt, lease, worker_id, attempted_at, heartbeat_at,
                                 deadline_at, limited, claim_number)
        SELECT {carried}, run_at, errors, attempt + 1, lease + 1, claimer, (SELECT at FROM written),
               (SELECT at FROM written),
               least((SELECT at FROM written) + coalesce(timeout, q.timeout), expires_at), q.max_workers IS NOT NULL,
               CASE WHEN q.max_workers IS NOT NULL OR concurrency_key IS NOT NULL
                    THEN nextval('awa.claim_number') END
        FROM deleted
        WHERE (SELECT count(*) FROM durable) >= 0
    ),
    paid AS (
        UPDATE awa.queues
        SET rate_tokens = tokens - (SELECT count(*) FROM deleted), rate_refilled_at = refilled
        WHERE name = wanted_queue AND tokens IS NOT NULL
    )
    SELECT job, (SELECT at FROM written), q.fair IS TRUE OR 4 * count(*) OVER () < allowed FROM deleted;
END $$;
