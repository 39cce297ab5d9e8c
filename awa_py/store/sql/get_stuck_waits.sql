-- Waiting jobs that do not go on: those whose awaited children have ended, which a worker or the leader should have woken;
-- and the number of those that have waited for a signal for very long, with no timeout.
-- $1 look at this many of each · $2 grace since the last child has ended · $3 how long is very long
SELECT ARRAY(SELECT id
             FROM (SELECT id, waits FROM awa.scheduled WHERE waits ? 'children' ORDER BY id LIMIT $1) AS parents
             WHERE coalesce((waits ->> 'since')::timestamptz < now() - $2::interval, true)
               AND EXISTS (SELECT FROM jsonb_to_recordset(waits -> 'children') AS awaited(ids jsonb, fail_fast boolean)
                           WHERE awa.children_have_ended(parents.id, ids, fail_fast))
               AND NOT EXISTS (SELECT FROM awa.completed WHERE parent_id = parents.id AND finalized_at > now() - $2)
               AND NOT EXISTS (SELECT FROM awa.dead WHERE parent_id = parents.id AND finalized_at > now() - $2)
             ORDER BY id) AS parents,
       (SELECT count(*)
        FROM (SELECT waits FROM awa.scheduled WHERE run_at >= '8999-01-01 00:00:00+00' ORDER BY run_at LIMIT $1) AS untimed
        WHERE waits ? 'signals' AND (waits ->> 'since')::timestamptz < now() - $3::interval) AS long_waits
