-- Keep the results of completed children whose day is dropped next, although their parent may ask for them.
-- Delete what was kept for parents that have ended since: their end deletes it, but does not see what is kept at that moment.
-- $1 the default retention
WITH deleted AS (DELETE FROM awa.kept_results WHERE NOT awa.needs_children(parent_id))
INSERT INTO awa.kept_results (parent_id, id, kind, result)
SELECT parent_id, id, kind, result
FROM awa.completed
WHERE finalized_at < now() + interval '1 hour'  -- of those that are dropped in an hour, too
                     - greatest($1::interval, (SELECT max(completed_retention) FROM awa.queues))
  AND parent_id IS NOT NULL AND awa.needs_children(parent_id)
ON CONFLICT DO NOTHING
