-- Named rate limits for the whole cluster: handlers ask for tokens before they call what is limited elsewhere.

CREATE TABLE awa.rate_limits (
    name        text        PRIMARY KEY CONSTRAINT name_is_a_name
                            CHECK (length(name) BETWEEN 1 AND 200 AND name !~ '[[:cntrl:]]'),
    count       int         NOT NULL CONSTRAINT rate_is_positive CHECK (count >= 1),      -- so many tokens come …
    period      interval    NOT NULL CONSTRAINT period_is_positive CHECK (period > '0'),  -- … in that time,
    token_s     float8      GENERATED ALWAYS AS (extract(epoch FROM period)::float8 / nullif(count, 0)) STORED,
    burst       int         NOT NULL CONSTRAINT burst_is_positive CHECK (burst >= 1),     -- and so many are kept
    tokens      float8      NOT NULL,  -- as of refilled_at; below zero: so many were promised before they came
    refilled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);
