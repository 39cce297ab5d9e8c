-- Delete the row of a worker that has stopped.
-- $1 id
DELETE FROM awa.workers WHERE id = $1
