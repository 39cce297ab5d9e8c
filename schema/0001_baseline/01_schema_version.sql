-- The migrations that were applied. In all files, `awa` stands for the schema's name in this database.
--
-- No function depends on its caller's search path: SQL functions have a body that was parsed when they were created
-- (BEGIN ATOMIC), so that they can be inlined, and PL/pgSQL functions set the path.

-- Older programs read this table to find out whether they may use a newer schema, and foreign schemas are told by it:
-- no migration may rename or remove these columns.
CREATE TABLE awa.schema_version (
    version     int         PRIMARY KEY,
    name        text        NOT NULL,
    compatible  boolean     NOT NULL,  -- programs that need only the version before can use this one
    awa_version text        NOT NULL,  -- the release of awa-py that applied it
    applied_at  timestamptz NOT NULL DEFAULT now()
);
