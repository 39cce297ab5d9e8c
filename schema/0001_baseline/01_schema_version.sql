-- The migrations that were applied. In all files, `awa` stands for the schema's name in this database.
--
-- No function depends on its caller's search path: SQL functions have a body that was parsed when they were created
-- (BEGIN ATOMIC), so that they can be inlined, and PL/pgSQL functions set the path.

CREATE TABLE awa.schema_version (
    version    int         PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
