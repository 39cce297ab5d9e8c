-- Whether the login may write new jobs to the tables itself. A producer may not: it calls functions.
SELECT pg_catalog.has_table_privilege('awa.ready', 'INSERT')
   AND pg_catalog.has_table_privilege('awa.payloads', 'INSERT')
   AND pg_catalog.has_table_privilege('awa.unique_keys', 'INSERT')
   AND pg_catalog.has_table_privilege('awa.unique_keys', 'SELECT')
   AND pg_catalog.has_function_privilege('awa.wake(pg_catalog.text[], pg_catalog.timestamptz)', 'EXECUTE')
   AND pg_catalog.has_table_privilege('awa.listening', 'SELECT')
   AND pg_catalog.has_table_privilege('awa.routes', 'SELECT')
   AND pg_catalog.has_function_privilege('awa.route(pg_catalog.text)', 'EXECUTE') AS can_insert
