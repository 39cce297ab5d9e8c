-- The queues of kinds by route. Kinds without a route are missing.
-- $1 kinds
SELECT kind, queue FROM (SELECT kind, awa.route(kind) AS queue FROM pg_catalog.unnest($1::pg_catalog.text[]) AS kind OFFSET 0) AS routed
WHERE queue IS NOT NULL
