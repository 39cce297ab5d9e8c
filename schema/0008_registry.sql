-- What the registry knows of a worker, beyond where it runs: how people call it, how much of each queue it takes, what it
-- was told, and whether its end would be seen.

ALTER TABLE awa.workers
    ADD label     text,                             -- NULL: it goes by its id
    ADD limits    int[]       NOT NULL DEFAULT '{}', -- how many jobs of each of its queues it runs at the most
    ADD quiet     boolean     NOT NULL DEFAULT false, -- it claims nothing, and lets what runs finish
    ADD stopping  boolean     NOT NULL DEFAULT false, -- it was told to stop, or drains
    -- When the server began on which its session holds the worker's lock; NULL: it holds none. Where that is this server,
    -- and the lock is free, the session has ended.
    ADD locked_on timestamptz;

-- Every row is written every two seconds, in place.
ALTER TABLE awa.workers SET (fillfactor = 50);

-- The queues that the leader splits, however many there are.
CREATE INDEX queues_limited ON awa.queues (name) WHERE max_workers IS NOT NULL;
