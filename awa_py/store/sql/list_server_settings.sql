-- Settings as a session of this role has them from its start; times in milliseconds. Those that this version of
-- PostgreSQL does not know are left out.
-- $1 names
SELECT name, reset_val AS value FROM pg_settings WHERE name = ANY ($1::text[])
