-- Enqueues one job that is due at once and has no unique key; its queue's workers hear of it with the commit.
-- JSON is text, so that a caller's own jsonb codec does not matter.
-- $1 text: kind. $2 text: queue, NULL: where a route leads. $3 smallint: priority. $4 text: arguments, JSON.
-- $5 smallint: max_attempts. $6 interval: timeout. $7 timestamptz: deadline. $8 text[]: tags. $9 text: metadata, JSON.
-- $10 bigint: parent_id. $11 text: the queue, where none is named and no route leads. $12 text: concurrency key, NULL: none.
-- $13 smallint: its limit. $14 boolean: whether its jobs are ordered.
INSERT INTO awa.ready (kind, queue, priority, args, max_attempts, timeout, expires_at, tags, metadata, parent_id,
                       concurrency_key, concurrency_limit, ordered)
-- A function, not its query: with that, PostgreSQL would make a plan of its own for each enqueue that names a queue.
VALUES ($1, coalesce($2, awa.route($1), $11), $3, $4::text::jsonb, $5, $6, $7, $8, $9::text::jsonb, $10,
        $12, $13, $14)
-- What awa.wake does, without the price of a function that is not inlined.
RETURNING id, created_at, queue,
          (SELECT pg_notify('awa', 'ready:' || ready.queue)
           WHERE EXISTS (SELECT FROM awa.listening WHERE listening.queue = ready.queue))
