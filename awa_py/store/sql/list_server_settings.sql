-- Settings as a session of this role has them at its start; times in milliseconds. Settings that this version of
-- PostgreSQL does not know are missing.
-- $1 names
SELECT name, reset_val AS value FROM pg_settings WHERE name = ANY ($1::text[])
