-- Create or change a route. An unchanged one is not written.
-- $1 pattern · $2 queue
INSERT INTO awa.routes AS old (pattern, queue) VALUES ($1, $2)
ON CONFLICT (pattern) DO UPDATE SET queue = excluded.queue, updated_at = now()
WHERE old.queue <> excluded.queue
