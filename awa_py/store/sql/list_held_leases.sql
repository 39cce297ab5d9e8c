-- The running jobs of a worker, with their leases, also those that it does not know: if the connection broke between a
-- claim's commit and its answer.
-- $1 worker id
SELECT id, lease FROM awa.running WHERE worker_id = $1
