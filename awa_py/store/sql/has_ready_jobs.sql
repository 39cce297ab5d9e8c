-- Which of these queues have anything to claim for these kinds: one look at many queues.
-- $1 queues · $2 kinds
SELECT wanted.queue
FROM unnest($1::text[]) AS wanted(queue)
WHERE EXISTS (SELECT FROM awa.ready WHERE queue = wanted.queue AND kind = ANY ($2::text[]))
