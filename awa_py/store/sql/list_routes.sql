-- The routes, in the order of their patterns.
SELECT pattern, queue, updated_at FROM awa.routes ORDER BY pattern
