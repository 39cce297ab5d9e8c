-- Named rate limits of the whole cluster: token buckets that handlers ask for tokens.

CREATE TABLE awa.rate_limits (
    name        text        PRIMARY KEY CONSTRAINT name_is_a_name
                            CHECK (length(name) BETWEEN 1 AND 200 AND name !~ '[[:cntrl:]]'),
    count       int         NOT NULL CONSTRAINT rate_is_positive CHECK (count >= 1),      -- tokens that are added …
    period      interval    NOT NULL CONSTRAINT period_is_positive CHECK (period > '0'),  -- … in this period
    token_s     float8      GENERATED ALWAYS AS (extract(epoch FROM period)::float8 / nullif(count, 0)) STORED,
    burst       int         NOT NULL CONSTRAINT burst_is_positive CHECK (burst >= 1),     -- the bucket's size
    tokens      float8      NOT NULL,  -- at refilled_at; below zero: tokens that are promised to waiting callers
    refilled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);
