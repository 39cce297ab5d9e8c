"""The search path of awa's own sessions: what others create in `public` or elsewhere is never called.

An operator or a function of another schema can be a better match for a statement than PostgreSQL's own, and would run
with the rights of the login that sends the statement.
"""

SEARCH_PATH = "pg_catalog, pg_temp"
SET_LOCAL_SEARCH_PATH = f"SET LOCAL search_path = {SEARCH_PATH}"
