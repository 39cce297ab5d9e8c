-- Drops the day partitions of events that are old as a whole. Answers how many it dropped.
-- $1 retention
SELECT awa.drop_days('events', now() - $1::interval)
