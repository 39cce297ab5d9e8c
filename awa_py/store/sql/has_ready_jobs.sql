-- The queues that have a job of these kinds that could be claimed now: one statement for many queues.
-- $1 queues · $2 kinds
SELECT wanted.queue
FROM unnest($1::text[]) AS wanted(queue)
WHERE (EXISTS (SELECT FROM awa.ready
               WHERE queue = wanted.queue AND concurrency_key IS NULL
                 AND kind = ANY ($2::text[]) AND (expires_at IS NULL OR expires_at > now()))
       OR EXISTS (SELECT FROM awa.ready
                  WHERE queue = wanted.queue AND concurrency_key IS NOT NULL
                    AND kind = ANY ($2::text[]) AND (expires_at IS NULL OR expires_at > now())
                    AND NOT (ordered AND EXISTS (SELECT FROM awa.scheduled s  -- an earlier job of the key is not finished
                                                 WHERE s.concurrency_key = ready.concurrency_key AND s.ordered
                                                   AND s.id < ready.id AND s.lease > 0))))
  AND NOT EXISTS (SELECT FROM awa.queues
                  WHERE name = wanted.queue
                    AND ((paused AND paused_until > now() IS NOT FALSE) OR throttled_until > now()))
