-- The roles of an installation. None can log in: logins are made members of them.
--
--   "awa_owner"     owns the schema and all that is in it; its members migrate
--   "awa_worker"    works, leads, and changes what operators change
--   "awa_producer"  enqueues, and can do nothing else
--   "awa_reader"    looks, and can do nothing else
--
-- May be run again at any time. Takes a superuser, or the schema's owner with CREATEROLE.
DO $$
DECLARE
    thing text;
BEGIN
    IF to_regrole('"awa_owner"') IS NULL THEN CREATE ROLE "awa_owner" NOLOGIN; END IF;
    IF to_regrole('"awa_worker"') IS NULL THEN CREATE ROLE "awa_worker" NOLOGIN; END IF;
    IF to_regrole('"awa_producer"') IS NULL THEN CREATE ROLE "awa_producer" NOLOGIN; END IF;
    IF to_regrole('"awa_reader"') IS NULL THEN CREATE ROLE "awa_reader" NOLOGIN; END IF;

    -- Who gives everything away keeps it, as a member.
    IF NOT pg_has_role('"awa_owner"'::regrole::oid, 'USAGE') THEN
        GRANT "awa_owner" TO CURRENT_USER;
    END IF;
    IF (SELECT nspowner <> '"awa_owner"'::regrole FROM pg_namespace WHERE oid = '"awa"'::regnamespace) THEN
        ALTER SCHEMA "awa" OWNER TO "awa_owner";
    END IF;
    FOR thing IN
        (SELECT 'TABLE ' || oid::regclass
         FROM pg_class
         WHERE relnamespace = '"awa"'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
           AND relowner <> '"awa_owner"'::regrole
         ORDER BY relkind = 'S')  -- a table takes its sequences along
        UNION ALL
        SELECT 'ROUTINE ' || oid::regprocedure
        FROM pg_proc
        WHERE pronamespace = '"awa"'::regnamespace AND proowner <> '"awa_owner"'::regrole
    LOOP
        EXECUTE 'ALTER ' || thing || ' OWNER TO "awa_owner"';
    END LOOP;
END $$;
