-- What happened to a job and is not in its row: earlier starts, and how those attempts ended. Workers write events
-- outside of the hot path, so a crash can lose some. One partition per day (UTC), dropped as a whole.

CREATE TABLE awa.events (
    job_id    bigint      NOT NULL,
    at        timestamptz NOT NULL,
    event     text        NOT NULL,
    lease     int         NOT NULL,  -- of the claim that it belongs to
    attempt   smallint    NOT NULL,
    began_at  timestamptz,           -- when that attempt began
    worker_id uuid,
    detail    text
) PARTITION BY RANGE (at);
CREATE INDEX events_job ON awa.events (job_id);
CREATE TABLE awa.events_default PARTITION OF awa.events DEFAULT;

SELECT awa.create_day_partitions('events', 7);
