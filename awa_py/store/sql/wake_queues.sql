-- With the commit, notify workers that queues have available jobs, and the leader of a due time that is close.
-- $1 text[]: queues. $2 timestamptz: the earliest due time of the scheduled jobs, or NULL.
SELECT awa.wake($1, $2)
