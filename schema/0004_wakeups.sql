-- Who wants to be woken. NOTIFY takes a lock on the whole server until its transaction has been committed, so that
-- producers that notify commit one after another. Nobody is notified, therefore, who does not wait: a worker enters
-- its queues here when it has nothing to do, and leaves when it is so busy that it looks for jobs by itself.

CREATE TABLE awa.listening (
    queue     text NOT NULL,
    worker_id uuid NOT NULL REFERENCES awa.workers (id) ON DELETE CASCADE,
    PRIMARY KEY (queue, worker_id)
);
CREATE INDEX listening_worker ON awa.listening (worker_id);

-- Tells workers that wait that these queues have something ready, and the leader of a due time that is close. What
-- lies further away the leader finds by itself. It has a channel of its own: a candidate in each worker would be woken
-- with each job.
CREATE OR REPLACE FUNCTION awa.wake(ready_queues text[], due timestamptz) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('awa', 'ready:' || name)
    FROM unnest(ready_queues) AS name
    WHERE EXISTS (SELECT FROM awa.listening WHERE queue = name)
    UNION ALL
    SELECT pg_notify('awa' || ':leader', 'due:') WHERE due < now() + interval '10 seconds'
$$;
