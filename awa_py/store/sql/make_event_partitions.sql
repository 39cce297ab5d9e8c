-- Makes the partitions of events of the days ahead. Answers how many it made.
-- $1 days
SELECT awa.make_days('events', 'at', $1)
