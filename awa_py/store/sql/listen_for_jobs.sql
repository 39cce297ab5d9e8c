-- Subscribe a worker to the wake-ups of queues.
-- $1 worker id · $2 queues
INSERT INTO awa.listening (queue, worker_id)
SELECT unnest($2::text[]), id FROM awa.workers WHERE id = $1
ON CONFLICT DO NOTHING
