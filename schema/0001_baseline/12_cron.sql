-- Cron schedules.

CREATE TABLE awa.cron (
    name             text        PRIMARY KEY CONSTRAINT cron_has_a_name CHECK (awa.is_name(name)),
    expression       text        NOT NULL CONSTRAINT expression_is_plain CHECK (awa.is_plain(expression)),
    timezone         text        NOT NULL DEFAULT 'UTC' CONSTRAINT timezone_is_plain CHECK (awa.is_plain(timezone)),
    kind             text        NOT NULL CONSTRAINT kind_is_a_name CHECK (awa.is_name(kind)),
    args             jsonb       NOT NULL DEFAULT '{}' CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    options          jsonb       NOT NULL DEFAULT '{}'  -- queue, priority, …: the keys that awa.enqueue_many takes
                                 CONSTRAINT options_is_an_object CHECK (jsonb_typeof(options) = 'object'),
    misfire          text        NOT NULL DEFAULT 'one' CONSTRAINT misfire_is_known CHECK (misfire IN ('one', 'skip', 'all')),
    paused           boolean     NOT NULL DEFAULT false,
    enabled          boolean     NOT NULL DEFAULT true,  -- false: it can never fire; last_error says why
    last_error       text,
    effective_from   timestamptz NOT NULL DEFAULT now(), -- earlier fire times are ignored
    last_enqueued_at timestamptz,                        -- the last fire time that became a job
    next_at          timestamptz,                        -- the next fire time; NULL: not yet computed
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    version          text,                               -- of the app that declares it; NULL: an operator set it
    replaced_versions text[]     NOT NULL DEFAULT '{}',  -- earlier ones: they cannot declare it again
    CONSTRAINT times_are_between_1900_and_9000
        CHECK (awa.is_time(effective_from) AND awa.is_time(last_enqueued_at) AND awa.is_time(next_at)
               AND awa.is_time(created_at) AND awa.is_time(updated_at))
);
CREATE INDEX cron_next_at ON awa.cron (next_at NULLS FIRST) WHERE enabled AND NOT paused;
