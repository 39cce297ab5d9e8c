-- What the roles may do, exactly: what they had before is taken back. May be run again at any time, by the owner.

REVOKE ALL ON ALL TABLES IN SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
REVOKE ALL ON ALL SEQUENCES IN SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
REVOKE ALL ON ALL ROUTINES IN SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
REVOKE ALL ON SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
GRANT USAGE ON SCHEMA "awa" TO "awa_worker", "awa_producer", "awa_reader";

-- The worker: rows, but no tables. Partitions are made and dropped by functions that run as the owner.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "awa" TO "awa_worker";
REVOKE INSERT, UPDATE, DELETE ON awa.schema_version FROM "awa_worker";
REVOKE INSERT, DELETE ON awa.leader FROM "awa_worker";
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA "awa" TO "awa_worker";
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA "awa" TO "awa_worker";

-- The producer: two functions, and the version, by which `awa enqueue` sees that it fits.
GRANT EXECUTE ON FUNCTION awa.enqueue, awa.enqueue_many TO "awa_producer";
GRANT SELECT ON awa.schema_version TO "awa_producer";

-- The reader: rows, and two functions that count what runs.
GRANT SELECT ON ALL TABLES IN SCHEMA "awa" TO "awa_reader";
GRANT SELECT ON ALL SEQUENCES IN SCHEMA "awa" TO "awa_reader";
GRANT EXECUTE ON FUNCTION awa.running_of_queue, awa.running_with_key TO "awa_reader";

-- The partitions of days to come.
ALTER DEFAULT PRIVILEGES IN SCHEMA "awa" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "awa_worker";
ALTER DEFAULT PRIVILEGES IN SCHEMA "awa" GRANT SELECT ON TABLES TO "awa_reader";
