-- Those of the kinds that nobody has declared. A producer may ask, too.
-- $1 kinds
SELECT awa.undeclared_kinds($1::text[])
