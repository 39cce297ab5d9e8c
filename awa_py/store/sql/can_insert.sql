-- Whether the login may write new jobs to the tables itself. A producer may not: it calls functions.
SELECT has_table_privilege('awa.ready', 'INSERT') AND has_table_privilege('awa.listening', 'SELECT')
   AND has_table_privilege('awa.routes', 'SELECT') AND has_function_privilege('awa.route(text)', 'EXECUTE') AS can_insert
