"""Decoys: copies in `public` of all functions, operators and types of PostgreSQL. A call of one is an error.

With `public` first in the search path, every name in a statement that does not say its schema means a decoy.
"""

from awa_py.connections import Connection
from awa_py.db.schema import Schema
from awa_py.store.session import statement

PATH = "public, pg_catalog"
ERROR = "cannot accept a value of type any"  # of any_in, which always fails, with any arguments

# Not the input functions of pseudo-types and the like, which only C code can call.
PLANT = """
DO $do$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('CREATE FUNCTION public.%I(%s) RETURNS %s%s LANGUAGE internal AS ''any_in''', proname,
                      (SELECT string_agg(concat(CASE WHEN provariadic <> 0 AND n = pronargs THEN 'VARIADIC ' END,
                                                format_type(type, NULL)), ', ' ORDER BY n)
                       FROM unnest(proargtypes) WITH ORDINALITY AS a(type, n)),
                      CASE WHEN proretset THEN 'SETOF ' END, format_type(prorettype, NULL))
        FROM pg_proc
        WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind <> 'p'
          AND prorettype NOT IN ('internal'::regtype, 'trigger'::regtype, 'event_trigger'::regtype,
                                 'language_handler'::regtype, 'index_am_handler'::regtype)
          AND NOT proargtypes::oid[] && ARRAY['internal'::regtype::oid, 'cstring'::regtype]
        UNION ALL
        SELECT format('CREATE OPERATOR public.%s (PROCEDURE = public.%I %s %s)', oprname, p.proname,
                      ', LEFTARG = ' || format_type(nullif(oprleft, 0), NULL),
                      ', RIGHTARG = ' || format_type(oprright, NULL))
        FROM pg_operator JOIN pg_proc p ON p.oid = oprcode
        WHERE oprnamespace = 'pg_catalog'::regnamespace
        UNION ALL
        SELECT format('CREATE DOMAIN public.%I AS %s', typname, format_type(oid, NULL))
        FROM pg_type
        WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm') AND typname !~ '^_|^pg_'
    LOOP
        EXECUTE command;
    END LOOP;
END $do$
"""
# Of a row of pg_depend.
IS_DECOY = """(refclassid, refobjid) IN (
    SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprnamespace = 'public'::regnamespace
    UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typnamespace = 'public'::regnamespace)"""


async def plant(connection: Connection) -> None:
    """Create the decoys, as a superuser, and put them first in the search path of the database's new sessions."""
    await connection.execute("SET search_path = pg_catalog")
    await connection.execute(PLANT)
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {database} SET search_path = {PATH}")


async def find_called(connection: Connection, schema: Schema, name: str) -> list[str]:
    """Return the decoys that a statement would call if `public` comes first in the path.

    A function with a parsed body depends on what it calls, so nothing has to be executed.
    """
    text = statement(name, schema)
    await connection.execute("SET search_path = pg_catalog")
    prepared = await connection.prepare(text)
    types = ", ".join(f"{type_.schema}.{type_.name}" for type_ in prepared.get_parameters())
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"SET LOCAL search_path = {PATH}")
        await connection.execute(
            f"CREATE FUNCTION public.probe({types}) RETURNS void LANGUAGE sql BEGIN ATOMIC {text}\n; END"
        )
        await connection.execute("SET LOCAL search_path = pg_catalog")
        called = f"""SELECT pg_describe_object(refclassid, refobjid, 0) FROM pg_depend
                     WHERE classid = 'pg_proc'::regclass AND {IS_DECOY}
                       AND objid = (SELECT max(oid) FROM pg_proc WHERE proname = 'probe')"""
        return sorted(row[0] for row in await connection.fetch(called))
    finally:
        await transaction.rollback()
