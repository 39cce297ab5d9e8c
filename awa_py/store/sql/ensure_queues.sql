-- Create the missing rows of queues. Existing settings stay.
-- $1 names
INSERT INTO awa.queues (name) SELECT unnest($1::text[]) ON CONFLICT (name) DO NOTHING
