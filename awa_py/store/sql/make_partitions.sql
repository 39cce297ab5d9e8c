-- Makes the partitions of the days ahead. Answers how many it made.
-- $1 days
SELECT awa.make_partitions($1)
