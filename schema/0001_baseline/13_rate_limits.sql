-- Named rate limits of the whole cluster: token buckets that handlers ask for tokens.

CREATE TABLE awa.rate_limits (
    name        text        PRIMARY KEY CONSTRAINT name_is_a_name CHECK (awa.is_name(name)),
    count       int         NOT NULL CONSTRAINT rate_is_positive CHECK (count >= 1),      -- tokens that are added …
    period      interval    NOT NULL CONSTRAINT period_is_positive_and_below_1000_years  -- … in this period
                            CHECK (period > '0' AND awa.is_duration(period)),
    token_s     float8      GENERATED ALWAYS AS (extract(epoch FROM period)::float8 / nullif(count, 0)) STORED,
    burst       int         NOT NULL CONSTRAINT burst_is_positive CHECK (burst >= 1),     -- the bucket's size
    -- At refilled_at. Below zero: tokens that are promised to waiting callers.
    tokens      float8      NOT NULL CONSTRAINT tokens_are_a_number CHECK (tokens BETWEEN -1e12 AND 1e12),
    refilled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT times_are_between_1900_and_9000
        CHECK (awa.is_time(refilled_at) AND awa.is_time(created_at) AND awa.is_time(updated_at))
);
