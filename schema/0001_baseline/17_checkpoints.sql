-- What durable jobs remember.

-- One row per step, timer, signal or group of children of a job that has not completed. When the job completes, the rows
-- move into its row in awa.completed, and are dropped with it. A job that failed keeps them, for a retry.
-- An open checkpoint is a wait that has begun: `until` is when its timer fires or its timeout passes.
CREATE TABLE awa.checkpoints (
    job_id      bigint      NOT NULL,
    name        text        COLLATE "C" NOT NULL CONSTRAINT name_is_a_name
                            CHECK (length(name) BETWEEN 1 AND 500 AND awa.is_plain(name)),
    number      int         NOT NULL,                   -- the order of the calls
    type        text        NOT NULL CONSTRAINT type_is_known
                            CHECK (type IN ('step', 'transaction', 'value', 'timer', 'signal', 'spawn', 'join', 'choice')),
    is_open     boolean     NOT NULL DEFAULT false,
    lease       int         NOT NULL,                   -- of the attempt that wrote it
    tries       smallint    NOT NULL DEFAULT 1,
    took_s      real,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    until       timestamptz,
    digest      bigint,                                 -- of the arguments
    result      json,                                   -- json, not jsonb: faster both ways, and exactly as it was written
    error       json,                                   -- of a step whose error the handler caught
    CONSTRAINT until_is_between_1900_and_9000 CHECK (awa.is_time(until)),
    PRIMARY KEY (job_id, name)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);

-- Results of completed children whose rows the retention has removed, although their parent has not ended.
CREATE TABLE awa.kept_results (
    parent_id bigint NOT NULL,
    id        bigint NOT NULL,
    kind      text   NOT NULL,
    result    jsonb,
    PRIMARY KEY (parent_id, id)
);

-- Signals that no wait has taken yet. `key` is the sender's: a signal with the same name and key is sent once.
CREATE TABLE awa.signals (
    job_id  bigint      NOT NULL,
    id      bigint      GENERATED ALWAYS AS IDENTITY,   -- the order in which they are taken
    name    text        NOT NULL CONSTRAINT name_is_a_name CHECK (awa.is_name(name)),
    data    jsonb,
    key     text        CONSTRAINT key_is_a_name CHECK (length(key) BETWEEN 1 AND 1000 AND awa.is_plain(key)),
    sent_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, id)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02);

-- The keys of signals, until their job is deleted: a sender may repeat a signal after it was taken.
CREATE TABLE awa.signal_keys (
    job_id bigint NOT NULL,
    name   text   NOT NULL,
    key    text   NOT NULL,
    PRIMARY KEY (job_id, name, key)
);

-- Send a signal to a job, in the caller's transaction. Return false if one with the same key was sent before.
-- A trigger wakes the job when the transaction commits.
CREATE FUNCTION awa.signal(job_id bigint, name text, data jsonb DEFAULT NULL, key text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp {stable plans} AS $$
#variable_conflict use_variable
DECLARE
    job_state text;
BEGIN
    IF awa.is_name(name) IS NOT TRUE THEN
        PERFORM awa.refuse_name('signal');
    END IF;
    SELECT state INTO job_state FROM awa.get_jobs(ARRAY[job_id]);
    IF job_state IS NULL THEN
        RAISE no_data_found USING MESSAGE = format('there is no job %s: the signal "%s" was not sent', job_id, name);
    ELSIF job_state IN ('completed', 'failed', 'cancelled') THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('job %s has ended (%s): the signal "%s" was not sent', job_id, job_state, name);
    END IF;
    IF key IS NOT NULL THEN
        INSERT INTO awa.signal_keys VALUES (job_id, name, key) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM awa.signals AS s WHERE s.job_id = signal.job_id LIMIT 1000) AS unread) = 1000 THEN
        RAISE program_limit_exceeded USING MESSAGE = format(
            'job %s has 1000 signals that it has not taken: the signal "%s" was not sent', job_id, name);
    END IF;
    INSERT INTO awa.signals (job_id, name, data, key) VALUES (job_id, name, data, key);
    RETURN true;
END $$;

-- Wake the job of a new signal. Runs when the sender's transaction commits, so the locks are held for a moment only.
-- No wake-up is lost: if the job waits for the signal, it is woken here. If it is elsewhere, its row is locked until the
-- signal is visible. A job that is about to wait must delete that row first, and then looks for signals again.
CREATE FUNCTION awa.deliver_signal() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp {stable plans} AS $$
DECLARE
    woken_queue text;
BEGIN
    LOOP  -- a job that moves between two of these statements can be missed: look again
        WITH deleted AS (
            DELETE FROM awa.scheduled
            WHERE id = NEW.job_id AND state = 'waiting' AND waits -> 'signals' ? NEW.name
            RETURNING {carried}, errors, attempt, lease
        )
        INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
        SELECT {carried}, now(), errors, attempt, lease FROM deleted
        RETURNING queue INTO woken_queue;
        IF FOUND THEN
            PERFORM awa.wake(ARRAY[woken_queue], NULL);
            EXIT;
        END IF;
        PERFORM FROM awa.scheduled  -- not if it waits for the signal since the statement before
        WHERE id = NEW.job_id AND coalesce(waits -> 'signals' ? NEW.name, false) IS FALSE
        FOR KEY SHARE;
        EXIT WHEN FOUND;
        PERFORM FROM awa.ready WHERE id = NEW.job_id FOR KEY SHARE;
        EXIT WHEN FOUND;
        PERFORM FROM awa.running WHERE id = NEW.job_id FOR KEY SHARE;
        EXIT WHEN FOUND;
        IF NOT awa.is_unfinished(NEW.job_id) THEN  -- it has ended since the signal was sent
            IF NOT EXISTS (SELECT FROM awa.dead WHERE id = NEW.job_id) THEN  -- that one may be retried
                DELETE FROM awa.signals WHERE job_id = NEW.job_id AND id = NEW.id;
                DELETE FROM awa.signal_keys WHERE job_id = NEW.job_id AND name = NEW.name AND key = NEW.key;
            END IF;
            EXIT;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER deliver_signal AFTER INSERT ON awa.signals
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION awa.deliver_signal();

-- One statement, so that a job that moves is seen in one of the tables.
CREATE FUNCTION awa.is_unfinished(job_id bigint) RETURNS boolean LANGUAGE sql STABLE {stable plans}
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM awa.running WHERE id = job_id) OR EXISTS (SELECT FROM awa.ready WHERE id = job_id)
           OR EXISTS (SELECT FROM awa.scheduled WHERE id = job_id);
END;

-- Whether a job may ask for the results of its children: it has not ended, or has failed and can be retried.
CREATE FUNCTION awa.needs_children(job_id bigint) RETURNS boolean LANGUAGE sql STABLE {stable plans}
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM awa.running WHERE id = job_id) OR EXISTS (SELECT FROM awa.ready WHERE id = job_id)
           OR EXISTS (SELECT FROM awa.scheduled WHERE id = job_id) OR EXISTS (SELECT FROM awa.dead WHERE id = job_id);
END;

-- Take signals for waits of running jobs, in order: the oldest one of its name, if there is one; else nothing, if the wait's
-- timeout has passed. Record what was taken. A wait that gets nothing stays open, and its timeout begins. Lease and
-- worker guard each job. A call that is repeated, because its answer was lost, returns what the first one did.
--   names: of the checkpoints · signal_names: what they wait for · timeouts: NULL: none
-- Returns one row per wait of a job that is held: its position in the arrays, and its checkpoint; NULL if it has none.
CREATE FUNCTION awa.take_signals(
    holder uuid, ids bigint[], leases int[], names text[], numbers int[], signal_names text[], timeouts interval[]
) RETURNS TABLE (n int, is_open boolean, until timestamptz, result text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
#variable_conflict use_column
DECLARE
    checkpoint awa.checkpoints;
    taken awa.signals;
BEGIN
    FOR i IN 1..cardinality(ids) LOOP
        PERFORM FROM awa.running WHERE id = ids[i] AND lease = leases[i] AND worker_id = holder FOR KEY SHARE;
        CONTINUE WHEN NOT FOUND;
        checkpoint := NULL;
        taken := NULL;
        SELECT * INTO checkpoint FROM awa.checkpoints WHERE job_id = ids[i] AND name = names[i];
        IF checkpoint.job_id IS NULL OR checkpoint.is_open THEN
            DELETE FROM awa.signals
            WHERE job_id = ids[i]
              AND id = (SELECT id FROM awa.signals WHERE job_id = ids[i] AND name = signal_names[i] ORDER BY id LIMIT 1)
            RETURNING * INTO taken;
            IF taken.job_id IS NOT NULL OR checkpoint.until <= now() THEN
                INSERT INTO awa.checkpoints AS c (job_id, name, number, type, lease, until, result)
                VALUES (ids[i], names[i], numbers[i], 'signal', leases[i], checkpoint.until,
                        CASE WHEN taken.job_id IS NOT NULL
                             THEN json_build_object('name', taken.name, 'data', taken.data, 'sent_at', taken.sent_at) END)
                ON CONFLICT (job_id, name) DO UPDATE
                SET is_open = false, lease = excluded.lease, result = excluded.result, recorded_at = now()
                RETURNING c.* INTO checkpoint;
            ELSIF checkpoint.job_id IS NULL AND timeouts[i] IS NOT NULL THEN
                INSERT INTO awa.checkpoints AS c (job_id, name, number, type, lease, until, is_open)
                VALUES (ids[i], names[i], numbers[i], 'signal', leases[i], now() + timeouts[i], true)
                RETURNING c.* INTO checkpoint;
            END IF;
        END IF;
        n := i;
        is_open := coalesce(checkpoint.is_open, true);
        until := checkpoint.until;
        result := checkpoint.result::text;
        RETURN NEXT;
    END LOOP;
END $$;

-- Record a step inside the transaction that did its work, on a connection of the user. Lease and worker guard the job: the
-- caller rolls back if the answer is false. Its row stays locked until the transaction ends, so that no other attempt can begin.
-- An error says that an earlier call, whose COMMIT had no answer, has recorded the step.
CREATE FUNCTION awa.record_transaction(
    holder uuid, job bigint, job_lease int, name text, number int, tries smallint, took_s real, digest bigint, result text
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
BEGIN
    PERFORM FROM awa.running WHERE id = job AND lease = job_lease AND worker_id = holder FOR KEY SHARE;
    IF FOUND THEN
        INSERT INTO awa.checkpoints (job_id, name, number, type, lease, tries, took_s, digest, result)
        VALUES (job, record_transaction.name, record_transaction.number, 'transaction', job_lease,
                record_transaction.tries, record_transaction.took_s, record_transaction.digest, record_transaction.result::json);
        -- Only the COMMIT is left. A worker that froze must not keep its lock, or the job could not be rescued.
        PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- Complete a job inside the transaction that did its work, on a connection of the user: running → completed. Lease and
-- worker guard the job: the caller rolls back if the answer is false.
CREATE FUNCTION awa.complete_in_transaction(holder uuid, job bigint, job_lease int, result text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
BEGIN
    WITH ended AS (
        DELETE FROM awa.running WHERE id = job AND lease = job_lease AND worker_id = holder
        RETURNING *
    ),
    remembered AS (
        DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM ended))
        RETURNING *
    ),
    unread AS (DELETE FROM awa.signals WHERE job_id = ANY (ARRAY(SELECT id FROM ended))),
    results AS (DELETE FROM awa.kept_results WHERE parent_id = ANY (ARRAY(SELECT id FROM ended))),
    keys AS (DELETE FROM awa.signal_keys WHERE job_id = ANY (ARRAY(SELECT id FROM ended)))
    INSERT INTO awa.completed ({carried}, run_at, errors, attempt, lease, worker_id, attempted_at, result, checkpoints)
    SELECT {carried}, run_at, errors, attempt, lease, worker_id, attempted_at, complete_in_transaction.result::jsonb,
           (SELECT json_agg(remembered ORDER BY number) FROM remembered)
    FROM ended;
    IF FOUND THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);  -- as awa.record_transaction
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- Return whether awaited children need no more waiting: all have ended or, with fail_fast, one has failed. `ids` has ranges
-- of ids: [[FIRST, LAST], …]. The children with the highest ids end last: a scan from there does not read those that are
-- gone.
CREATE FUNCTION awa.children_have_ended(parent bigint, ids jsonb, fail_fast boolean) RETURNS boolean
LANGUAGE sql STABLE {stable plans}
BEGIN ATOMIC
    SELECT (fail_fast AND EXISTS (
                SELECT FROM jsonb_array_elements(ids) AS part
                WHERE EXISTS (SELECT FROM awa.dead
                              WHERE parent_id = parent AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint)))
           OR NOT EXISTS (
                SELECT FROM jsonb_array_elements(ids) AS part
                WHERE EXISTS (SELECT FROM awa.running
                              WHERE parent_id = parent AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint
                              ORDER BY parent_id DESC, id DESC LIMIT 1)
                   OR EXISTS (SELECT FROM awa.ready
                              WHERE parent_id = parent AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint
                              ORDER BY parent_id DESC, id DESC LIMIT 1)
                   OR EXISTS (SELECT FROM awa.scheduled
                              WHERE parent_id = parent AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint
                              ORDER BY parent_id DESC, id DESC LIMIT 1));
END;

-- Suspend jobs: running → waiting; or → available, if a signal that it waits for is there; or → cancelled, if that was
-- requested. Lease and worker guard each job.
--   untils: when the earliest timer fires or timeout passes; NULL: no timer · waits: see awa.scheduled
-- Returns the jobs that are held. `woken` tells if the job is available; NULL: its row is locked, try again.
--
-- The row of a job is locked by a sender whose signal is not visible yet. The signals are read by a statement of its own,
-- after the rows were locked: it sees every signal whose sender has committed. Rows are skipped rather than waited for,
-- so that two transactions never wait for each other.
CREATE FUNCTION awa.suspend_jobs(holder uuid, ids bigint[], leases int[], untils timestamptz[], waits jsonb[])
RETURNS TABLE (id bigint, woken boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
#variable_conflict use_column
DECLARE
    lease_of jsonb := jsonb_object(ids::text[], leases::text[]);
    until_of jsonb := jsonb_object(ids::text[], untils::text[]);
    waits_of jsonb := jsonb_object(ids::text[], waits::text[]);
    held bigint[];
    locked bigint[];
    signalled bigint[];
BEGIN
    held := ARRAY(SELECT id FROM awa.running
                  WHERE id = ANY (ids) AND lease = (lease_of ->> id::text)::int AND worker_id = holder);
    locked := ARRAY(SELECT id FROM awa.running
                    WHERE id = ANY (held) AND lease = (lease_of ->> id::text)::int AND worker_id = holder
                    ORDER BY id
                    FOR UPDATE SKIP LOCKED);
    signalled := ARRAY(SELECT DISTINCT job_id FROM awa.signals
                       WHERE job_id = ANY (locked)
                         AND (waits_of ->> job_id::text)::jsonb -> 'signals' ? name);
    RETURN QUERY
    WITH ended AS (
        DELETE FROM awa.running WHERE id = ANY (locked)
        RETURNING *, id = ANY (signalled) AS is_woken
    ),
    waiting AS (
        INSERT INTO awa.scheduled (state, {carried}, run_at, errors, attempt, lease, waits)
        SELECT 'waiting', {carried}, coalesce((until_of ->> id::text)::timestamptz, '8999-01-01 00:00:00+00'), errors, 0, lease,
               (waits_of ->> id::text)::jsonb || jsonb_build_object('since', now())
        FROM ended WHERE cancel_requested_at IS NULL AND NOT is_woken
    ),
    woken AS (
        INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
        SELECT {carried}, now(), errors, 0, lease
        FROM ended WHERE cancel_requested_at IS NULL AND is_woken
    ),
    cancelled AS (
        INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
        SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user', worker_id),
               attempt, lease, worker_id, attempted_at
        FROM ended WHERE cancel_requested_at IS NOT NULL
    ),
    notified AS MATERIALIZED (
        SELECT awa.wake(array_agg(DISTINCT queue) FILTER (WHERE is_woken), min((until_of ->> id::text)::timestamptz)) FROM ended
    )
    SELECT ended.id, is_woken FROM ended CROSS JOIN notified
    UNION ALL
    SELECT busy, NULL FROM unnest(held) AS busy WHERE busy <> ALL (locked);
END $$;

REVOKE EXECUTE ON FUNCTION awa.signal, awa.deliver_signal, awa.take_signals, awa.suspend_jobs, awa.record_transaction,
    awa.complete_in_transaction FROM PUBLIC;
