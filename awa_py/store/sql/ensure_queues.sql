-- Gives each queue a row; what an operator set stays.
-- $1 names
INSERT INTO awa.queues (name) SELECT unnest($1::text[]) ON CONFLICT (name) DO NOTHING
