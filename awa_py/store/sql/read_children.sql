-- Children of a job that it waits for, if that needs no more waiting: see awa.children_have_ended.
-- $1 the parent's id · $2 ranges of ids, JSON: [[FIRST, LAST], …] · $3 whether a failed child ends the wait
-- Returns the children that have ended in the order of their ids; one row without an id if there are none, or if the job has
-- to wait. `ended` tells these apart.
--
-- Materialized: as a subquery, the function would be called again for each child.
WITH look AS MATERIALIZED (SELECT awa.children_have_ended($1, $2::text::jsonb, $3) AS ended)
SELECT ended, children.*
FROM look
LEFT JOIN LATERAL (
    SELECT child.*
    FROM jsonb_array_elements($2::text::jsonb) AS part
    CROSS JOIN LATERAL (
        SELECT id, kind, 'completed' AS state, result::text AS result, NULL AS error
        FROM awa.completed WHERE parent_id = $1 AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint
        UNION ALL
        SELECT id, kind, state, NULL, errors -> -1 ->> 'error'
        FROM awa.dead WHERE parent_id = $1 AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint
        UNION ALL
        SELECT id, kind, 'completed', result::text, NULL
        FROM awa.kept_results WHERE parent_id = $1 AND id BETWEEN (part ->> 0)::bigint AND (part ->> 1)::bigint
    ) AS child
    WHERE ended
) AS children ON true
ORDER BY id
