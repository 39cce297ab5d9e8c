-- Drop the day partitions of events whose whole day is older than the retention. Return the number of partitions
-- dropped.
-- $1 retention
SELECT awa.drop_day_partitions('events', now() - $1::interval)
