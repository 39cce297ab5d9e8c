-- From now on, nobody needs to say when a job becomes ready: the worker looks by itself.
-- $1 worker id
DELETE FROM awa.listening WHERE worker_id = $1
