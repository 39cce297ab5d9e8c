-- Notes what happened to jobs, by the database's clock.
-- $1 worker id · $2 job ids, $3 leases, $4 attempts, $5 how many seconds ago, as the texts of arrays · $6 events · $7 details
INSERT INTO awa.events (job_id, at, event, lease, attempt, worker_id, detail)
SELECT job_id, now() - ago * interval '1 second', event, lease, attempt, $1, detail
FROM unnest($2::text::bigint[], $3::text::int[], $4::text::smallint[], $5::text::float8[], $6::text[], $7::text[])
     AS noted(job_id, lease, attempt, ago, event, detail)
