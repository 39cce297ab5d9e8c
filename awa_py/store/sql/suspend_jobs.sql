-- running → waiting, or available if it need not wait, or cancelled if that was requested: see awa.suspend_jobs.
-- $1 worker id · $2 ids · $3 leases · $4 times of the earliest timers · $5 what they wait for, JSON
SELECT id, woken FROM awa.suspend_jobs($1, $2::bigint[], $3::int[], $4::timestamptz[], $5::text[]::jsonb[])
