-- Notes what happened to jobs, by the database's clock.
-- $1 worker id · $2 job ids, $3 leases, $4 attempts, $5 how many seconds ago it happened, $6 and the attempt began, all as
-- the texts of arrays · $7 events · $8 details
INSERT INTO awa.events (job_id, at, event, lease, attempt, began_at, worker_id, detail)
SELECT job_id, now() - ago * interval '1 second', event, lease, attempt, now() - began_ago * interval '1 second', $1, detail
FROM unnest($2::text::bigint[], $3::text::int[], $4::text::smallint[], $5::text::float8[], $6::text::float8[],
            $7::text[], $8::text[]) AS noted(job_id, lease, attempt, ago, began_ago, event, detail)
