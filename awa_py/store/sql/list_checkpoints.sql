-- The checkpoints of a job as JSON, in the order of its calls. Those of a completed job are in its row.
-- $1 job id
-- The values are not taken apart here: an operator may have written some that PostgreSQL refuses to read.
SELECT item::text AS checkpoint
FROM (SELECT number::bigint AS n, row_to_json(checkpoints) AS item FROM awa.checkpoints WHERE job_id = $1
      UNION ALL
      SELECT n, item
      FROM awa.completed
      CROSS JOIN json_array_elements(CASE WHEN json_typeof(checkpoints) = 'array' THEN checkpoints ELSE '[]' END)
                 WITH ORDINALITY AS folded(item, n)
      WHERE id = $1) AS found
ORDER BY n
