-- The number of jobs in each state, and of those that ended within the window.
-- $1 the window
SELECT coalesce((SELECT jsonb_object_agg(state, jobs) FROM (
           SELECT state, count(*) AS jobs FROM awa.jobs GROUP BY state) AS s), '{}')::text AS counts,
       (SELECT count(*) FROM awa.completed WHERE finalized_at > now() - $1::interval) AS completed,
       (SELECT count(*) FROM awa.dead WHERE finalized_at > now() - $1::interval) AS dead
