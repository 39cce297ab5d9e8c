-- The first jobs of a selection, by id. Jobs that were enqueued or ended after `as of` do not belong to it.
-- $1 states · $2 queue · $3 kind · $4 tag · $5 a part of the last error (each NULL: any) · $6 as of
-- $7 minimum and $8 maximum age at that time (each NULL: any); the age counts from the end, or from the enqueue
-- $9 only above this id · $10 only these ids (NULL: any) · $11 at most this many
SELECT id, state, lease, queue
FROM awa.jobs
WHERE state = ANY ($1::text[]) AND ($2::text IS NULL OR queue = $2) AND ($3::text IS NULL OR kind = $3)
  AND ($4::text IS NULL OR $4 = ANY (tags))
  AND ($5::text IS NULL OR strpos(errors -> -1 ->> 'error', $5) > 0)
  AND coalesce(finalized_at, created_at) <= $6::timestamptz - coalesce($7::interval, '0')
  AND ($8::interval IS NULL OR coalesce(finalized_at, created_at) > $6 - $8)
  AND id > $9 AND ($10::bigint[] IS NULL OR id = ANY ($10))
ORDER BY id
LIMIT $11
