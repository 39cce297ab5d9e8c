-- The replication slots that keep deleted rows from being vacuumed, and by how many transactions.
SELECT slot_name::text AS name, active, age(xmin) AS transactions
FROM pg_replication_slots
WHERE xmin IS NOT NULL
ORDER BY age(xmin) DESC
