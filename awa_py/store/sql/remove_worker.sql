-- Takes a worker that has stopped out of the registry.
-- $1 id
DELETE FROM awa.workers WHERE id = $1
