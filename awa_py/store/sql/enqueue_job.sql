-- Enqueues one job that is due at once and has no unique key; its queue's workers hear of it with the commit.
-- JSON is text, so that a caller's own jsonb codec does not matter.
-- $1 text: kind. $2 text: queue. $3 smallint: priority. $4 text: arguments, JSON. $5 smallint: max_attempts.
-- $6 interval: timeout. $7 timestamptz: deadline. $8 text[]: tags. $9 text: metadata, JSON. $10 bigint: parent_id.
INSERT INTO awa.ready (kind, queue, priority, args, max_attempts, timeout, expires_at, tags, metadata, parent_id)
VALUES ($1, $2, $3, $4::text::jsonb, $5, $6, $7, $8, $9::text::jsonb, $10)
-- What awa.wake does, without the price of a function that is not inlined.
RETURNING id, created_at,
          (SELECT pg_notify('awa', 'ready:' || $2) WHERE EXISTS (SELECT FROM awa.listening WHERE queue = $2))
