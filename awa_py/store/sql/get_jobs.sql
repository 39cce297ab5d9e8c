-- Jobs by id, in any state.
-- $1 ids, as the text of an array: asyncpg would look up the array's type on the caller's connection
SELECT {shown}
FROM awa.get_jobs($1::pg_catalog.text::bigint[])
