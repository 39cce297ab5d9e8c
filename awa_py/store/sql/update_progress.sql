-- Writes how far running jobs have come. The lease guards each row.
-- $1 ids · $2 leases · $3 progress, JSON
UPDATE awa.running
SET progress = ((SELECT jsonb_object($1::bigint[]::text[], $3::text[])) ->> id::text)::jsonb
WHERE id = ANY ($1::bigint[])
  AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
