-- The settings of queues, and the routes that choose a job's queue by its kind.

-- NULL means the default. A queue without a row has default settings.
CREATE TABLE awa.queues (
    name                text        PRIMARY KEY CONSTRAINT queue_is_a_name CHECK (awa.is_queue_name(name)),
    paused              boolean     NOT NULL DEFAULT false,
    paused_until        timestamptz,
    backoff_enabled     boolean     NOT NULL DEFAULT true,
    backoff_base        interval    CONSTRAINT backoff_base_is_positive_and_below_1000_years
                                    CHECK (backoff_base > '0' AND awa.is_duration(backoff_base)),
    backoff_max         interval    CONSTRAINT backoff_max_is_positive_and_below_1000_years
                                    CHECK (backoff_max > '0' AND awa.is_duration(backoff_max)),
    completed_retention interval    CONSTRAINT completed_retention_is_not_negative_and_below_1000_years
                                    CHECK (awa.is_duration(completed_retention)),
    failed_retention    interval    CONSTRAINT failed_retention_is_not_negative_and_below_1000_years
                                    CHECK (awa.is_duration(failed_retention)),
    timeout             interval    CONSTRAINT timeout_is_positive_and_below_1000_years
                                    CHECK (timeout > '0' AND awa.is_duration(timeout)),
    staleness           interval    CONSTRAINT staleness_is_positive_and_below_1000_years
                                    CHECK (staleness > '0' AND awa.is_duration(staleness)),
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    max_workers         int         CONSTRAINT max_workers_is_positive CHECK (max_workers >= 1),  -- in the whole cluster
    rate_jobs           int         CONSTRAINT rate_is_positive CHECK (rate_jobs >= 1),  -- jobs that may start …
    rate_period         interval    CONSTRAINT rate_period_is_positive_and_below_1000_years  -- … in this period
                                    CHECK (rate_period > '0' AND awa.is_duration(rate_period)),
    rate_tokens         float8      NOT NULL DEFAULT 1 CONSTRAINT rate_tokens_are_a_number  -- at rate_refilled_at
                                    CHECK (rate_tokens BETWEEN -1e12 AND 1e12),
    rate_refilled_at    timestamptz NOT NULL DEFAULT now(),
    durable_claims      boolean     NOT NULL DEFAULT false, -- a claim waits for the disk, so a crash cannot undo it
    fair                boolean     NOT NULL DEFAULT false, -- concurrency keys take turns, however many jobs each has
    aging               interval    CONSTRAINT aging_is_not_negative_and_below_1000_years  -- 0: off
                                    CHECK (awa.is_duration(aging)),
    throttled_until     timestamptz,                        -- nothing is claimed until then
    throttled_at        timestamptz,                        -- when the throttling began
    throttle_reason     text,
    throttles           int         NOT NULL DEFAULT 0 CONSTRAINT throttles_are_counted
                                    CHECK (throttles >= 0 AND throttles < 2147483647),
    CONSTRAINT times_are_between_1900_and_9000
        CHECK (awa.is_time(paused_until) AND awa.is_time(created_at) AND awa.is_time(updated_at)
               AND awa.is_time(rate_refilled_at) AND awa.is_time(throttled_until) AND awa.is_time(throttled_at)),
    CONSTRAINT only_a_pause_has_an_end CHECK (paused OR paused_until IS NULL),
    CONSTRAINT a_rate_has_a_period CHECK ((rate_jobs IS NULL) = (rate_period IS NULL))
);
-- The queues that the leader splits over the workers.
CREATE INDEX queues_limited ON awa.queues (name) WHERE max_workers IS NOT NULL;

-- The queue of a job that was enqueued without one. A pattern is a kind, or a prefix and a star.
CREATE TABLE awa.routes (
    pattern    text        PRIMARY KEY CONSTRAINT pattern_is_a_kind
                           CHECK (awa.is_name(pattern) AND strpos(left(pattern, -1), '*') = 0),
    queue      text        NOT NULL CONSTRAINT queue_is_a_name CHECK (awa.is_queue_name(queue)),
    updated_at timestamptz NOT NULL DEFAULT now() CONSTRAINT updated_at_is_between_1900_and_9000
                           CHECK (awa.is_time(updated_at))
);

-- Return the queue of the most specific route that matches the kind, or NULL.
CREATE FUNCTION awa.route(kind text) RETURNS text LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT queue FROM awa.routes
    WHERE pattern = kind OR (right(pattern, 1) = '*' AND starts_with(kind, left(pattern, -1)))
    ORDER BY pattern = kind DESC, length(pattern) DESC
    LIMIT 1;
END;

-- Let the current transaction commit as the database is configured, although the session commits asynchronously.
CREATE FUNCTION awa.commit_durably() RETURNS text LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT set_config('synchronous_commit', reset_val, true) FROM pg_settings WHERE name = 'synchronous_commit';
END;
