-- Write events of jobs. Their times are given as ages, so that they are by the database's clock.
-- $1 worker id · $2 job ids, $3 leases, $4 attempts, $5 microseconds since the event, $6 microseconds since the attempt
-- began, all as the texts of arrays · $7 events · $8 details
INSERT INTO awa.events (job_id, at, event, lease, attempt, began_at, worker_id, detail)
SELECT job_id, now() - age_us * interval '1 microsecond', event, lease, attempt,
       now() - began_age_us * interval '1 microsecond', $1, detail
FROM unnest($2::text::bigint[], $3::text::int[], $4::text::smallint[], $5::text::bigint[], $6::text::bigint[],
            $7::text[], $8::text[]) AS new(job_id, lease, attempt, age_us, began_age_us, event, detail)
