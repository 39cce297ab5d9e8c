-- What ended in each minute, by queue and kind.

-- Durations are counted in latency buckets, 20 per decade: bucket 0 is up to 1 ms, bucket n up to 10^(n/20) ms, bucket
-- 200 is everything above. Such counts can be added, percentiles cannot.
CREATE FUNCTION awa.latency_bucket(duration interval) RETURNS int LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN duration <= '1 ms' THEN 0
                WHEN duration > '1 ms' THEN least(ceil(20 * log(date_part('epoch', duration) * 1000)), 200)::int END;
END;

-- Return the middle of a latency bucket in seconds. No duration of the bucket differs from it by more than 6 %.
CREATE FUNCTION awa.latency_bucket_seconds(bucket int) RETURNS float8 LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT 10 ^ ((greatest(bucket, 1) - 0.5::float8) / 20) / 1000 WHERE bucket IS NOT NULL;
END;

-- A wait is the time from due to claimed, of the last attempt; a run the time from claimed to ended. Percentiles are in
-- seconds. `waits` and `runs` are the counts that they were computed from: pairs of a latency bucket and its count.
CREATE TABLE awa.metric_buckets (
    at        timestamptz NOT NULL CONSTRAINT at_is_between_1900_and_9000 CHECK (awa.is_time(at)),
    queue     text        NOT NULL,
    kind      text        NOT NULL,
    completed int         NOT NULL,
    failed    int         NOT NULL,
    cancelled int         NOT NULL,
    retried   int         NOT NULL,  -- attempts before the last one
    wait_p50  float8,
    wait_p95  float8,
    wait_p99  float8,
    run_p50   float8,
    run_p95   float8,
    run_p99   float8,
    waits     int[],
    runs      int[],
    PRIMARY KEY (at, queue, kind)
);
