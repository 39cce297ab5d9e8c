-- The routes, by pattern.
SELECT pattern, queue, updated_at FROM awa.routes ORDER BY pattern
