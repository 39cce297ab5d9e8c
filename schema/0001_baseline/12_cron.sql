-- Cron schedules.

CREATE TABLE awa.cron (
    name             text        PRIMARY KEY CONSTRAINT cron_has_a_name CHECK (length(name) BETWEEN 1 AND 200),
    expression       text        NOT NULL,
    timezone         text        NOT NULL DEFAULT 'UTC',
    kind             text        NOT NULL,
    args             jsonb       NOT NULL DEFAULT '{}' CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    options          jsonb       NOT NULL DEFAULT '{}',  -- queue, priority, …: the keys that awa.enqueue_many takes
    misfire          text        NOT NULL DEFAULT 'one' CONSTRAINT misfire_is_known CHECK (misfire IN ('one', 'skip', 'all')),
    paused           boolean     NOT NULL DEFAULT false,
    enabled          boolean     NOT NULL DEFAULT true,  -- false: it can never fire; last_error says why
    last_error       text,
    effective_from   timestamptz NOT NULL DEFAULT now(), -- earlier fire times are ignored
    last_enqueued_at timestamptz,                        -- the last fire time that became a job
    next_at          timestamptz,                        -- the next fire time; NULL: not yet computed
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX cron_next_at ON awa.cron (next_at NULLS FIRST) WHERE enabled AND NOT paused;
