-- Writes how far running jobs have come. The lease guards each row.
-- $1 ids · $2 leases · $3 progress, JSON
UPDATE awa.running r
SET progress = mine.progress::jsonb
FROM unnest($1::bigint[], $2::int[], $3::text[]) AS mine(id, lease, progress)
WHERE r.id = mine.id AND r.lease = mine.lease
