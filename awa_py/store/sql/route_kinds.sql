-- The queues that operators' routes give to kinds; a kind without a route is not among them.
-- $1 kinds
SELECT kind, queue FROM (SELECT kind, awa.route(kind) AS queue FROM unnest($1::text[]) AS kind OFFSET 0) AS routed
WHERE queue IS NOT NULL
