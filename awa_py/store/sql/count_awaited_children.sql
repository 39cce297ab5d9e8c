-- How many of the children that a job waits for have not ended, and the first of them.
-- $1 the parent's id · $2 first and $3 last ids of ranges of children · $4 return at most this many ids
WITH unfinished AS MATERIALIZED (
    SELECT child.id
    FROM unnest($2::bigint[], $3::bigint[]) AS part(first_id, last_id)
    CROSS JOIN LATERAL (
        SELECT id FROM awa.ready WHERE parent_id = $1 AND id BETWEEN part.first_id AND part.last_id
        UNION ALL
        SELECT id FROM awa.scheduled WHERE parent_id = $1 AND id BETWEEN part.first_id AND part.last_id
        UNION ALL
        SELECT id FROM awa.running WHERE parent_id = $1 AND id BETWEEN part.first_id AND part.last_id
    ) AS child
)
SELECT (SELECT count(*) FROM unfinished) AS unfinished,
       ARRAY(SELECT id FROM unfinished ORDER BY id LIMIT $4) AS first_ids
