-- Notes what happened to jobs, by the database's clock.
-- $1 worker id · $2 job ids, $3 leases, $4 attempts, $5 how many microseconds ago it happened, $6 and the attempt began, all
-- as the texts of arrays · $7 events · $8 details
INSERT INTO awa.events (job_id, at, event, lease, attempt, began_at, worker_id, detail)
SELECT job_id, now() - ago * interval '1 microsecond', event, lease, attempt, now() - began * interval '1 microsecond', $1,
       detail
FROM unnest($2::text::bigint[], $3::text::int[], $4::text::smallint[], $5::text::bigint[], $6::text::bigint[],
            $7::text[], $8::text[]) AS noted(job_id, lease, attempt, ago, began, event, detail)
