-- Drops the day partitions of completed jobs that are old as a whole, by the longest retention that any queue has.
-- Answers how many it dropped.
-- $1 the default retention
SELECT awa.drop_partitions(
    now() - greatest($1::interval, (SELECT max(completed_retention) FROM awa.queues)))
