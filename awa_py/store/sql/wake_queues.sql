-- Tells workers, with the commit, that these queues have something ready, and the leader of a due time that is close.
-- $1 text[]: queues. $2 timestamptz: the earliest due time of what was scheduled, or NULL.
SELECT awa.wake($1, $2)
