-- The roles of a schema. They cannot log in: logins become members of them.
--
--   "awa_owner"     owns the schema and its objects; its members migrate
--   "awa_worker"    runs jobs, leads, and makes the changes of operators
--   "awa_producer"  can only enqueue
--   "awa_reader"    can only read
--
-- Can be repeated at any time. Needs a superuser, or the schema's owner with CREATEROLE.
DO $$
DECLARE
    object text;
BEGIN
    IF to_regrole('"awa_owner"') IS NULL THEN CREATE ROLE "awa_owner" NOLOGIN; END IF;
    IF to_regrole('"awa_worker"') IS NULL THEN CREATE ROLE "awa_worker" NOLOGIN; END IF;
    IF to_regrole('"awa_producer"') IS NULL THEN CREATE ROLE "awa_producer" NOLOGIN; END IF;
    IF to_regrole('"awa_reader"') IS NULL THEN CREATE ROLE "awa_reader" NOLOGIN; END IF;

    -- The login that gives its objects away keeps its rights, as a member.
    IF NOT pg_has_role('"awa_owner"'::regrole::oid, 'USAGE') THEN
        GRANT "awa_owner" TO CURRENT_USER;
    END IF;
    IF (SELECT nspowner <> '"awa_owner"'::regrole FROM pg_namespace WHERE oid = '"awa"'::regnamespace) THEN
        ALTER SCHEMA "awa" OWNER TO "awa_owner";
    END IF;
    FOR object IN
        (SELECT 'TABLE ' || oid::regclass
         FROM pg_class
         WHERE relnamespace = '"awa"'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
           AND relowner <> '"awa_owner"'::regrole
         ORDER BY relkind = 'S')  -- a table changes the owner of its sequences
        UNION ALL
        SELECT 'ROUTINE ' || oid::regprocedure
        FROM pg_proc
        WHERE pronamespace = '"awa"'::regnamespace AND proowner <> '"awa_owner"'::regrole
    LOOP
        EXECUTE 'ALTER ' || object || ' OWNER TO "awa_owner"';
    END LOOP;
END $$;
