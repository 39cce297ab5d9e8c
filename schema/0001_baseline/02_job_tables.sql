-- The five job tables. The table that a job is in is its state: each transition deletes the row from one table and
-- inserts it into another, in one statement.

CREATE SEQUENCE awa.job_id;
CREATE SEQUENCE awa.pos;

-- The columns that all five tables share, and their rules. The tables copy them with LIKE. This table stays empty:
-- awa.discard_invalid_jobs reads the rules from it, also those that a job table has lost.
CREATE TABLE awa.job_columns (
    id                bigint      NOT NULL DEFAULT nextval('awa.job_id'),
    created_at        timestamptz NOT NULL DEFAULT now(),
    run_at            timestamptz NOT NULL DEFAULT now(),
    expires_at        timestamptz,                      -- the job's deadline: after it, the job fails
    timeout           interval    CONSTRAINT timeout_is_positive_and_below_1000_years  -- of each attempt
                                  CHECK (timeout > '0' AND awa.is_duration(timeout)),
    parent_id         bigint,
    lease             int         NOT NULL DEFAULT 0 CONSTRAINT lease_is_counted  -- a claim adds 1
                                  CHECK (lease >= 0 AND lease < 2147483647),
    priority          smallint    NOT NULL DEFAULT 2 CONSTRAINT priority_is_1_to_4 CHECK (priority BETWEEN 1 AND 4),
    attempt           smallint    NOT NULL DEFAULT 0 CONSTRAINT attempt_is_counted CHECK (attempt >= 0),
    max_attempts      smallint    NOT NULL DEFAULT 25 CONSTRAINT max_attempts_is_positive CHECK (max_attempts >= 1),
    rescues           smallint    NOT NULL DEFAULT 0 CONSTRAINT rescues_are_counted  -- attempts whose worker died
                                  CHECK (rescues >= 0 AND rescues < 32767),
    concurrency_limit smallint,                         -- of jobs with the concurrency_key, running at once
    ordered           boolean,                          -- jobs with the concurrency_key run one at a time, by id
    kind              text        NOT NULL CONSTRAINT kind_is_a_name CHECK (awa.is_name(kind)),
    queue             text        NOT NULL DEFAULT 'default'
                                  CONSTRAINT queue_is_a_name CHECK (awa.is_queue_name(queue)),
    args              jsonb       DEFAULT '{}'          -- NULL: in awa.payloads
                                  CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    metadata          jsonb       CONSTRAINT metadata_is_an_object CHECK (jsonb_typeof(metadata) = 'object'),
    tags              text[]      CONSTRAINT tags_are_names CHECK (awa.are_names(tags)),
    unique_key        text        CONSTRAINT unique_key_is_a_name
                                  CHECK (length(unique_key) BETWEEN 1 AND 1000 AND awa.is_plain(unique_key)),
    concurrency_key   text        COLLATE "C" CONSTRAINT key_is_a_name
                                  CHECK (length(concurrency_key) BETWEEN 1 AND 500 AND awa.is_plain(concurrency_key)),
    errors            jsonb       CONSTRAINT errors_is_a_list CHECK (jsonb_typeof(errors) = 'array'),
    progress          jsonb,
    CONSTRAINT times_are_between_1900_and_9000
        CHECK (awa.is_time(created_at) AND awa.is_time(run_at) AND awa.is_time(expires_at)),
    CONSTRAINT key_is_whole CHECK ((concurrency_key IS NULL) = (concurrency_limit IS NULL)
                                   AND (concurrency_key IS NULL) = (ordered IS NULL)),
    CONSTRAINT concurrency_limit_is_positive CHECK (concurrency_limit >= 1 AND (NOT ordered OR concurrency_limit = 1))
);

-- The states scheduled, retryable and waiting: jobs that are not due. The leader reads them by run_at. A waiting job has
-- `waits`, which says since when, and what wakes it:
-- {"since": TIME, "signals": [NAME, …], "children": [{"ids": [[FIRST, LAST], …], "fail_fast": true}, …]}.
-- Its run_at is that of its earliest timer, or the year 8999.
CREATE TABLE awa.scheduled (
    LIKE awa.job_columns INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    state text NOT NULL CONSTRAINT state_is_not_due CHECK (state IN ('scheduled', 'retryable', 'waiting')),
    waits jsonb CONSTRAINT waits_can_be_read CHECK (waits IS NULL OR awa.are_waits(waits)),
    CONSTRAINT only_waiting_jobs_have_waits CHECK ((state = 'waiting') = (waits IS NOT NULL)),
    CONSTRAINT an_attempt_is_left CHECK (attempt < max_attempts),
    PRIMARY KEY (id)
);
CREATE INDEX scheduled_run_at ON awa.scheduled (run_at);
CREATE INDEX scheduled_waits_for_children ON awa.scheduled (id) WHERE waits ? 'children';
CREATE INDEX scheduled_expires_at ON awa.scheduled (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX scheduled_ordered ON awa.scheduled (concurrency_key, id) WHERE ordered;

-- The state available. Claims read it by (queue, priority, pos). A row gets its pos when it enters the table, so FIFO
-- means "in the order of becoming available".
CREATE TABLE awa.ready (
    LIKE awa.job_columns INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    pos        bigint      NOT NULL DEFAULT nextval('awa.pos'),
    entered_at timestamptz NOT NULL DEFAULT now()       -- when it got its priority; aging raises it after a while
                           CONSTRAINT entered_at_is_between_1900_and_9000 CHECK (awa.is_time(entered_at)),
    CONSTRAINT an_attempt_is_left CHECK (attempt < max_attempts),
    PRIMARY KEY (id)
);
-- Jobs with a concurrency key have indexes of their own: claims of other jobs never read them, and a key that is at its
-- limit is skipped with one index lookup, however many jobs it has.
CREATE UNIQUE INDEX ready_order ON awa.ready (queue, priority, pos) WHERE concurrency_key IS NULL;
CREATE UNIQUE INDEX ready_keyed_order ON awa.ready (queue, priority, pos) WHERE concurrency_key IS NOT NULL;
CREATE INDEX ready_keys ON awa.ready (queue, concurrency_key, priority, id) WHERE concurrency_key IS NOT NULL;
CREATE INDEX ready_expires_at ON awa.ready (expires_at) WHERE expires_at IS NOT NULL;

-- The state running. Heartbeats and outcomes find their rows by id. heartbeat_at is in no index, and each page has free
-- space, so that its updates are HOT. A rescue searches by attempted_at, which is never later than heartbeat_at.
-- Jobs that count against a limit have a claim_number, which is the order of their claims: jobs with a concurrency key,
-- and `limited` ones, which were claimed while their queue had max_workers.
CREATE TABLE awa.running (
    LIKE awa.job_columns INCLUDING DEFAULTS,            -- no constraints: its rows were checked in awa.ready
    worker_id           uuid        NOT NULL,
    attempted_at        timestamptz NOT NULL DEFAULT clock_timestamp(),  -- now() is older than a wait for a lock
    heartbeat_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline_at         timestamptz,                    -- of this attempt: its timeout or expires_at
    cancel_requested_at timestamptz,
    limited             boolean     NOT NULL DEFAULT false,
    claim_number        bigint,
    CONSTRAINT attempts_are_within_bounds CHECK (attempt BETWEEN 1 AND max_attempts),
    CONSTRAINT lease_is_held CHECK (lease >= 1),
    CONSTRAINT own_times_are_between_1900_and_9000
        CHECK (awa.is_time(attempted_at) AND awa.is_time(heartbeat_at) AND awa.is_time(deadline_at)
               AND awa.is_time(cancel_requested_at)),
    CONSTRAINT counted_jobs_have_a_number
        CHECK (claim_number IS NOT NULL OR NOT (limited OR concurrency_key IS NOT NULL)),
    PRIMARY KEY (id)
) WITH (fillfactor = 70);
CREATE INDEX running_attempted_at ON awa.running (attempted_at);
CREATE INDEX running_deadline_at ON awa.running (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX running_limited ON awa.running (queue, claim_number) WHERE limited;
CREATE INDEX running_keyed ON awa.running (claim_number) WHERE concurrency_key IS NOT NULL;

-- The state completed: one partition per day (UTC), dropped as a whole. Jobs of a day without a partition go to the
-- default partition, so that a job can always complete.
CREATE TABLE awa.completed (
    LIKE awa.job_columns INCLUDING DEFAULTS,
    worker_id    uuid        NOT NULL,
    attempted_at timestamptz NOT NULL,
    finalized_at timestamptz NOT NULL DEFAULT now(),
    result       jsonb,
    checkpoints  json                                   -- of a durable job: its rows of awa.checkpoints, in order
) PARTITION BY RANGE (finalized_at);
CREATE INDEX completed_id ON awa.completed (id);
CREATE INDEX completed_finalized_at ON awa.completed USING brin (finalized_at);
CREATE INDEX completed_payloads ON awa.completed (finalized_at) WHERE args IS NULL;
CREATE TABLE awa.completed_default PARTITION OF awa.completed DEFAULT;

-- The states failed and cancelled.
CREATE TABLE awa.dead (
    LIKE awa.job_columns INCLUDING DEFAULTS,
    state        text        NOT NULL CONSTRAINT state_is_final CHECK (state IN ('failed', 'cancelled')),
    worker_id    uuid,
    attempted_at timestamptz,
    finalized_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id)
);
CREATE INDEX dead_finalized_at ON awa.dead (finalized_at);
CREATE INDEX dead_queue ON awa.dead (queue);

-- Large arguments: they are written once, and the job's row moves from table to table without them. The row of a job
-- whose `args` is NULL has its arguments here. Both rows are written and deleted in one transaction, except that a job that
-- is deleted by hand leaves its payload to the leader.
CREATE TABLE awa.payloads (
    job_id bigint PRIMARY KEY,
    args   jsonb  NOT NULL CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object')
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off, toast.autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0.02,
        toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);

-- The children of a job. Jobs without a parent are not in these indexes.
CREATE INDEX scheduled_parent ON awa.scheduled (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX ready_parent ON awa.ready (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX running_parent ON awa.running (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX completed_parent ON awa.completed (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX dead_parent ON awa.dead (parent_id, id) WHERE parent_id IS NOT NULL;

-- Rows stay in these tables for milliseconds. Vacuum early, and never take the exclusive lock that truncation needs.
ALTER TABLE awa.ready SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
                           autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE awa.running SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
                             autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE awa.scheduled SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
                               autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
