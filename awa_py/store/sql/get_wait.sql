-- What a waiting job waits for. · $1 job id
SELECT waits::text AS waits, CASE WHEN run_at < '8999-01-01 00:00:00+00' THEN awa.readable_time(run_at) END AS until
FROM awa.scheduled WHERE id = $1 AND state = 'waiting'
