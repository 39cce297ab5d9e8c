-- The exact rights of the roles: all other rights are revoked. The owner can repeat it at any time.

REVOKE ALL ON ALL TABLES IN SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
REVOKE ALL ON ALL SEQUENCES IN SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
REVOKE ALL ON ALL ROUTINES IN SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
REVOKE ALL ON SCHEMA "awa" FROM PUBLIC, "awa_worker", "awa_producer", "awa_reader";
GRANT USAGE ON SCHEMA "awa" TO "awa_worker", "awa_producer", "awa_reader";

-- The worker changes rows, but not tables. Functions that run as the owner create and drop partitions.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "awa" TO "awa_worker";
REVOKE INSERT, UPDATE, DELETE ON awa.schema_version FROM "awa_worker";
REVOKE INSERT, DELETE ON awa.leader FROM "awa_worker";
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA "awa" TO "awa_worker";
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA "awa" TO "awa_worker";

-- The producer calls functions, and reads the version, which `awa enqueue` checks.
GRANT EXECUTE ON FUNCTION awa.enqueue, awa.enqueue_many, awa.complete_jobs, awa.undeclared_kinds, awa.signal
    TO "awa_producer";
GRANT SELECT ON awa.schema_version TO "awa_producer";

-- The reader reads rows, and calls the functions that only read.
GRANT SELECT ON ALL TABLES IN SCHEMA "awa" TO "awa_reader";
GRANT SELECT ON ALL SEQUENCES IN SCHEMA "awa" TO "awa_reader";
GRANT EXECUTE ON FUNCTION awa.children_have_ended, awa.get_jobs, awa.leader_lock_holders, awa.readable_duration, awa.readable_time,
    awa.running_of_queue, awa.running_with_key
    TO "awa_reader";

-- The partitions of the next days.
ALTER DEFAULT PRIVILEGES IN SCHEMA "awa" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "awa_worker";
ALTER DEFAULT PRIVILEGES IN SCHEMA "awa" GRANT SELECT ON TABLES TO "awa_reader";
