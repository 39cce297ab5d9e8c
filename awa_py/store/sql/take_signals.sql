-- Take signals for waits of running jobs, and record them: see awa.take_signals.
-- $1 worker id · $2 ids · $3 leases · $4 names of the checkpoints · $5 their numbers · $6 names of the signals · $7 timeouts
SELECT n - 1 AS n, is_open, until, extract(epoch FROM until - clock_timestamp())::float8 AS left_s, result
FROM awa.take_signals($1, $2::bigint[], $3::int[], $4::text[], $5::int[], $6::text[], $7::interval[])
