-- The migrations that were applied. In all files, `awa` stands for the schema's name in this database.

CREATE TABLE awa.schema_version (
    version    int         PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
