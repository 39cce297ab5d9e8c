-- Complete a job in the transaction that did its work, on a connection of the user: see awa.complete_in_transaction.
-- $1 worker id · $2 job id · $3 lease · $4 result, JSON
SELECT awa.complete_in_transaction($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int4, $4::pg_catalog.text)
