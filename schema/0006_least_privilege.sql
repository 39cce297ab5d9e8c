-- Who may only enqueue need not be able to read or write a table, and who leads need not own one: what they call runs
-- as the owner, wherever their search path may point.

ALTER FUNCTION awa.enqueue_many(jsonb) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION awa.make_partitions(int) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION awa.drop_partitions(timestamptz) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

REVOKE EXECUTE ON FUNCTION awa.enqueue_many(jsonb), awa.make_partitions(int), awa.drop_partitions(timestamptz) FROM PUBLIC;

-- Whoever was given the right to insert jobs, by hand, still may.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END
        FROM pg_class CROSS JOIN aclexplode(relacl) AS given
        WHERE pg_class.oid = 'awa.ready'::regclass AND given.privilege_type = 'INSERT'
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION awa.enqueue_many(jsonb) TO %s', grantee);
    END LOOP;
END $$;
