-- The newest jobs that match.
-- $1 states · $2 queue · $3 kind · $4 tag (each NULL: any) · $5 only below this id (NULL: any) · $6 at most this many
SELECT {shown}
FROM awa.jobs
WHERE ($1::text[] IS NULL OR state = ANY ($1)) AND ($2::text IS NULL OR queue = $2)
  AND ($3::text IS NULL OR kind = $3) AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::bigint IS NULL OR id < $5)
ORDER BY id DESC
LIMIT $6
