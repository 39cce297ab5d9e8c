-- Drop the day partitions of completed jobs whose whole day is older than every queue's retention. Return the number of
-- partitions dropped.
-- $1 the default retention
SELECT awa.drop_day_partitions(
    'completed', now() - greatest($1::interval, (SELECT max(completed_retention) FROM awa.queues)))
