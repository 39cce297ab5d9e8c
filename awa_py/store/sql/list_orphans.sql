-- Jobs that a worker claimed without knowing: the connection broke between the claim's commit and its answer.
-- $1 worker id · $2 the ids that it knows
SELECT id, lease FROM awa.running WHERE worker_id = $1 AND id <> ALL ($2::bigint[])
