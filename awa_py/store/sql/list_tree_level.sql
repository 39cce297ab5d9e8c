-- The children of several jobs: the first child of each, then the second of each, and so on.
-- $1 ids of the parents · $2 at most this many children
-- `siblings` is the number of children that their parent has.
SELECT {shown}, siblings
FROM (SELECT *, row_number() OVER (PARTITION BY parent_id ORDER BY id) AS place, count(*) OVER (PARTITION BY parent_id) AS siblings
      FROM (SELECT * FROM awa.jobs WHERE parent_id = ANY ($1::bigint[]) OFFSET 0) AS found) AS children
ORDER BY place, parent_id
LIMIT $2
