-- Of these jobs, those that have ended, with their results or last errors, and those that do not exist.
-- $1 ids, as the text of an array
-- `state` is NULL if there is no such job.
--
-- Callers that wait for jobs run this several times a second, with thousands of ids. Almost all of these jobs have not
-- ended, so it looks at the small tables of unfinished jobs first: a search of `completed` costs one lookup for each
-- partition. Each table is a subquery of its own, which is always a lookup by primary key; a join would become a scan
-- of the whole table, if the last vacuum saw an empty one.
SELECT ended.id, final.state, final.result, final.error
FROM (
    SELECT awaited.id
    FROM unnest($1::text::bigint[]) AS awaited(id)
    WHERE coalesce((SELECT true FROM awa.ready WHERE ready.id = awaited.id),
                   (SELECT true FROM awa.running WHERE running.id = awaited.id),
                   (SELECT true FROM awa.scheduled WHERE scheduled.id = awaited.id)) IS NULL
) AS ended
LEFT JOIN LATERAL (
    SELECT 'completed' AS state, result::text AS result, NULL AS error FROM awa.completed WHERE completed.id = ended.id
    UNION ALL
    SELECT state, NULL, errors -> -1 ->> 'error' FROM awa.dead WHERE dead.id = ended.id
    LIMIT 1
) AS final ON true
