-- The processes and what they agree on: workers, the leader, cron schedules.

CREATE TABLE awa.workers (
    id           uuid        PRIMARY KEY,
    hostname     text        NOT NULL,
    pid          int         NOT NULL,
    version      text        NOT NULL,
    queues       text[]      NOT NULL,
    kinds        text[]      NOT NULL,
    concurrency  int         NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now()
);

-- One row, for ever: the last process that won the election. Whether it still leads, the lock says.
CREATE TABLE awa.leader (
    singleton   boolean     PRIMARY KEY DEFAULT true CONSTRAINT there_is_one CHECK (singleton),
    worker_id   uuid,
    hostname    text,
    pid         int,
    epoch       bigint      NOT NULL DEFAULT 0,
    elected_at  timestamptz
);
INSERT INTO awa.leader DEFAULT VALUES;

CREATE TABLE awa.cron (
    name             text        PRIMARY KEY CONSTRAINT cron_has_a_name CHECK (length(name) BETWEEN 1 AND 200),
    expression       text        NOT NULL,
    timezone         text        NOT NULL DEFAULT 'UTC',
    kind             text        NOT NULL,
    args             jsonb       NOT NULL DEFAULT '{}' CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    options          jsonb       NOT NULL DEFAULT '{}',  -- queue, priority, max_attempts, …: as awa.enqueue_many takes them
    misfire          text        NOT NULL DEFAULT 'one' CONSTRAINT misfire_is_known CHECK (misfire IN ('one', 'skip', 'all')),
    paused           boolean     NOT NULL DEFAULT false,
    enabled          boolean     NOT NULL DEFAULT true,  -- false: it can never fire, and last_error says why
    last_error       text,
    effective_from   timestamptz NOT NULL DEFAULT now(), -- fire times up to here do not count
    last_enqueued_at timestamptz,                        -- the last fire time that became a job
    next_at          timestamptz,                        -- the next fire time; NULL: not worked out yet
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX cron_next_at ON awa.cron (next_at NULLS FIRST) WHERE enabled AND NOT paused;
