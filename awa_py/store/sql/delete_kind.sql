-- Delete what was declared about a kind. Its jobs stay. Returns the kind, or no row if it was not declared.
-- $1 kind
DELETE FROM awa.kinds WHERE kind = $1 RETURNING kind
