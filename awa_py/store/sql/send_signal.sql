-- Send a signal to a job, in the caller's transaction: see awa.signal.
-- $1 job id · $2 name · $3 data, JSON · $4 the sender's key (NULL: none)
-- Returns false if a signal with the same name and key was sent before.
SELECT awa.signal($1::pg_catalog.int8, $2::pg_catalog.text, $3::pg_catalog.text::pg_catalog.jsonb, $4::pg_catalog.text)
