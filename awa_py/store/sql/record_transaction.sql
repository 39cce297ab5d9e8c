-- Record a step in the transaction that did its work, on a connection of the user: see awa.record_transaction.
-- $1 worker id · $2 job id · $3 lease · $4 name · $5 number · $6 tries · $7 seconds that it took · $8 digest · $9 result, JSON
SELECT awa.record_transaction($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int4, $4::pg_catalog.text,
                              $5::pg_catalog.int4, $6::pg_catalog.int2, $7::pg_catalog.float4, $8::pg_catalog.int8,
                              $9::pg_catalog.text)
