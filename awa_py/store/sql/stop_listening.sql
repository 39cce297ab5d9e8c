-- Unsubscribe a worker from all wake-ups.
-- $1 worker id
DELETE FROM awa.listening WHERE worker_id = $1
