-- The five job tables and the view that shows them as one.
--
-- A job's state is the table that it is in. Every transition deletes the row here and inserts it there, in
-- one statement. `awa` stands for the schema's name, whatever it is called in this database.

CREATE TABLE awa.schema_version (
    version    int         PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE SEQUENCE awa.job_id;
CREATE SEQUENCE awa.pos;

-- What a job carries through every state: each of the five tables begins with these columns.
CREATE TABLE awa.job_body (
    id           bigint      NOT NULL DEFAULT nextval('awa.job_id'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    run_at       timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                           -- the absolute deadline: past it, the job fails
    timeout      interval    CONSTRAINT timeout_is_positive CHECK (timeout > '0'),  -- for each attempt
    parent_id    bigint,
    lease        int         NOT NULL DEFAULT 0 CONSTRAINT lease_is_counted CHECK (lease >= 0),
    priority     smallint    NOT NULL DEFAULT 2 CONSTRAINT priority_is_1_to_4 CHECK (priority BETWEEN 1 AND 4),
    attempt      smallint    NOT NULL DEFAULT 0 CONSTRAINT attempt_is_counted CHECK (attempt >= 0),
    max_attempts smallint    NOT NULL DEFAULT 25 CONSTRAINT max_attempts_is_positive CHECK (max_attempts >= 1),
    rescues      smallint    NOT NULL DEFAULT 0,        -- how often its worker died under it
    kind         text        NOT NULL CONSTRAINT kind_is_a_name CHECK (length(kind) BETWEEN 1 AND 200),
    queue        text        NOT NULL DEFAULT 'default' CONSTRAINT queue_is_a_name
                             CHECK (length(queue) BETWEEN 1 AND 200 AND queue !~ '[,[:cntrl:]]'),
    args         jsonb       NOT NULL DEFAULT '{}' CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    metadata     jsonb       CONSTRAINT metadata_is_an_object CHECK (jsonb_typeof(metadata) = 'object'),
    tags         text[],
    unique_key   text,
    errors       jsonb       CONSTRAINT errors_is_a_list CHECK (jsonb_typeof(errors) = 'array'),
    progress     jsonb,
    -- What lies outside of Python's calendar could be written, but never read.
    CONSTRAINT times_are_in_the_calendar CHECK (run_at < '9999-12-31' AND expires_at < '9999-12-31')
);

-- scheduled, retryable, waiting: not due yet. The leader reads it by run_at.
CREATE TABLE awa.scheduled (
    LIKE awa.job_body INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    state text NOT NULL CONSTRAINT state_is_not_due CHECK (state IN ('scheduled', 'retryable', 'waiting')),
    CONSTRAINT an_attempt_is_left CHECK (attempt < max_attempts),
    PRIMARY KEY (id)
);
CREATE INDEX scheduled_run_at ON awa.scheduled (run_at) WHERE state <> 'waiting';
CREATE INDEX scheduled_expires_at ON awa.scheduled (expires_at) WHERE expires_at IS NOT NULL;

-- available. Claims read it by (queue, priority, pos): pos is taken when a row enters, so that FIFO means
-- "in the order of becoming ready".
CREATE TABLE awa.ready (
    LIKE awa.job_body INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    pos bigint NOT NULL DEFAULT nextval('awa.pos'),
    CONSTRAINT an_attempt_is_left CHECK (attempt < max_attempts),
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX ready_order ON awa.ready (queue, priority, pos);
CREATE INDEX ready_expires_at ON awa.ready (expires_at) WHERE expires_at IS NOT NULL;

-- running. Heartbeats and finishes find their rows by id. heartbeat_at is in no index, and the free space in
-- each page keeps its updates HOT; a rescue comes in through attempted_at, which is never later.
CREATE TABLE awa.running (
    LIKE awa.job_body INCLUDING DEFAULTS,               -- its rows come from ready, where they were checked
    worker_id           uuid        NOT NULL,
    attempted_at        timestamptz NOT NULL DEFAULT now(),
    heartbeat_at        timestamptz NOT NULL DEFAULT now(),
    deadline_at         timestamptz,                    -- of this attempt: its timeout or expires_at
    cancel_requested_at timestamptz,
    CONSTRAINT attempts_are_within_bounds CHECK (attempt BETWEEN 1 AND max_attempts),
    CONSTRAINT lease_is_held CHECK (lease >= 1),
    PRIMARY KEY (id)
) WITH (fillfactor = 70);
CREATE INDEX running_attempted_at ON awa.running (attempted_at);
CREATE INDEX running_deadline_at ON awa.running (deadline_at) WHERE deadline_at IS NOT NULL;

-- completed, a partition a day (UTC), dropped whole when old. The default partition is the net below: where
-- nobody made the day's partition, a job can still complete.
CREATE TABLE awa.completed (
    LIKE awa.job_body INCLUDING DEFAULTS,
    worker_id    uuid        NOT NULL,
    attempted_at timestamptz NOT NULL,
    finalized_at timestamptz NOT NULL DEFAULT now(),
    result       jsonb
) PARTITION BY RANGE (finalized_at);
CREATE INDEX completed_id ON awa.completed (id);
CREATE INDEX completed_finalized_at ON awa.completed USING brin (finalized_at);
CREATE TABLE awa.completed_default PARTITION OF awa.completed DEFAULT;

-- failed, cancelled: what people look at.
CREATE TABLE awa.dead (
    LIKE awa.job_body INCLUDING DEFAULTS,
    state        text        NOT NULL CONSTRAINT state_is_final CHECK (state IN ('failed', 'cancelled')),
    worker_id    uuid,
    attempted_at timestamptz,
    finalized_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id)
);
CREATE INDEX dead_finalized_at ON awa.dead (finalized_at);
CREATE INDEX dead_queue ON awa.dead (queue);

DROP TABLE awa.job_body;

-- A job's children; the indexes cost nothing where there are none.
CREATE INDEX scheduled_parent ON awa.scheduled (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX ready_parent ON awa.ready (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX running_parent ON awa.running (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX completed_parent ON awa.completed (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX dead_parent ON awa.dead (parent_id) WHERE parent_id IS NOT NULL;

-- Rows pass through these in milliseconds: vacuum early, and never take the lock that truncation needs.
ALTER TABLE awa.ready SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
                           autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE awa.running SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
                             autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE awa.scheduled SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
                               autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- Who holds a unique key. A holder whose job left the listed states, or whose time is up, holds it no more:
-- the next enqueue takes the key over, and the leader sweeps what nobody asks for.
CREATE TABLE awa.unique_keys (
    key        text   PRIMARY KEY,
    job_id     bigint NOT NULL,
    expires_at timestamptz,
    states     text[] NOT NULL
);

-- Operators' settings of a queue; NULL means the default. A queue without a row works with defaults.
CREATE TABLE awa.queues (
    name                text        PRIMARY KEY CONSTRAINT queue_is_a_name
                                    CHECK (length(name) BETWEEN 1 AND 200 AND name !~ '[,[:cntrl:]]'),
    paused              boolean     NOT NULL DEFAULT false,
    paused_until        timestamptz,
    backoff_enabled     boolean     NOT NULL DEFAULT true,
    backoff_base        interval    CONSTRAINT backoff_base_is_positive CHECK (backoff_base > '0'),
    backoff_max         interval    CONSTRAINT backoff_max_is_positive CHECK (backoff_max > '0'),
    completed_retention interval    CONSTRAINT completed_retention_is_not_negative CHECK (completed_retention >= '0'),
    failed_retention    interval    CONSTRAINT failed_retention_is_not_negative CHECK (failed_retention >= '0'),
    timeout             interval    CONSTRAINT timeout_is_positive CHECK (timeout > '0'),
    staleness           interval    CONSTRAINT staleness_is_positive CHECK (staleness > '0'),
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT only_a_pause_has_an_end CHECK (paused OR paused_until IS NULL)
);

CREATE VIEW awa.jobs AS
    SELECT id, kind, queue, state, priority, attempt, max_attempts, args, run_at, created_at,
           NULL::timestamptz AS attempted_at, NULL::timestamptz AS finalized_at, NULL::timestamptz AS heartbeat_at,
           expires_at AS deadline_at, NULL::uuid AS worker_id, lease, errors, progress, NULL::jsonb AS result,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL::timestamptz AS cancel_requested_at
    FROM awa.scheduled
    UNION ALL
    SELECT id, kind, queue, 'available', priority, attempt, max_attempts, args, run_at, created_at,
           NULL, NULL, NULL,
           expires_at, NULL, lease, errors, progress, NULL,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL
    FROM awa.ready
    UNION ALL
    SELECT id, kind, queue, 'running', priority, attempt, max_attempts, args, run_at, created_at,
           attempted_at, NULL, heartbeat_at,
           deadline_at, worker_id, lease, errors, progress, NULL,
           tags, metadata, unique_key, parent_id, timeout, rescues, cancel_requested_at
    FROM awa.running
    UNION ALL
    SELECT id, kind, queue, 'completed', priority, attempt, max_attempts, args, run_at, created_at,
           attempted_at, finalized_at, NULL,
           expires_at, worker_id, lease, errors, progress, result,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL
    FROM awa.completed
    UNION ALL
    SELECT id, kind, queue, state, priority, attempt, max_attempts, args, run_at, created_at,
           attempted_at, finalized_at, NULL,
           expires_at, worker_id, lease, errors, progress, NULL,
           tags, metadata, unique_key, parent_id, timeout, rescues, NULL
    FROM awa.dead;

-- The days ahead get their partitions; what waits in the default partition for such a day moves there.
-- Returns how many it made.
CREATE FUNCTION awa.make_partitions(days_ahead int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    day  date;
    part text;
    made int := 0;
BEGIN
    LOCK TABLE awa.completed IN SHARE UPDATE EXCLUSIVE MODE;  -- one at a time; nobody else is kept waiting
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + g FROM generate_series(0, days_ahead) AS g LOOP
        part := 'completed_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(format('%I.%I', 'awa', part)) IS NOT NULL;
        -- ATTACH locks less than CREATE … PARTITION OF: claims and finishes go on meanwhile.
        EXECUTE format('CREATE TABLE %I.%I (LIKE awa.completed INCLUDING DEFAULTS)', 'awa', part);
        EXECUTE format($move$
            WITH moved AS (DELETE FROM awa.completed_default
                           WHERE finalized_at >= %2$L AND finalized_at < %3$L RETURNING *)
            INSERT INTO %4$I.%1$I SELECT * FROM moved $move$,
            part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00', 'awa');
        EXECUTE format('ALTER TABLE awa.completed ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                       'awa', part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00');
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

-- Drops the partitions whose whole day ended before `cutoff`. Returns how many.
CREATE FUNCTION awa.drop_partitions(cutoff timestamptz) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    part    name;
    dropped int := 0;
BEGIN
    LOCK TABLE awa.completed IN SHARE UPDATE EXCLUSIVE MODE;
    FOR part IN
        SELECT child.relname
        FROM pg_inherits
        JOIN pg_class child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = 'awa.completed'::regclass
          AND child.relname ~ '^completed_\d{8}$'
          AND (to_date(right(child.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= cutoff
    LOOP
        EXECUTE format('DROP TABLE %I.%I', 'awa', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

SELECT awa.make_partitions(7);
