-- The workers, the leader, and the notifications between processes.

CREATE TABLE awa.workers (
    id           uuid        PRIMARY KEY,
    hostname     text        NOT NULL CONSTRAINT hostname_is_plain CHECK (awa.is_plain(hostname)),
    pid          int         NOT NULL,
    version      text        NOT NULL CONSTRAINT version_is_plain CHECK (awa.is_plain(version)),
    queues       text[]      NOT NULL CONSTRAINT queues_are_names CHECK (awa.are_names(queues)),
    kinds        text[]      NOT NULL CONSTRAINT kinds_are_names CHECK (awa.are_names(kinds)),
    concurrency  int         NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    label        text        CONSTRAINT label_is_a_name CHECK (awa.is_name(label)),  -- NULL: it is shown by its id
    limits       int[]       NOT NULL DEFAULT '{}',  -- the slots of each of its queues
    quiet        boolean     NOT NULL DEFAULT false, -- claims nothing, and finishes what runs
    stopping     boolean     NOT NULL DEFAULT false, -- was told to stop, or drains
    -- The start time of the server on which the worker's session holds its advisory lock; NULL: it holds none. If that
    -- is the current server and the lock is free, the session has ended.
    locked_on    timestamptz,
    CONSTRAINT times_are_between_1900_and_9000
        CHECK (awa.is_time(started_at) AND awa.is_time(heartbeat_at) AND awa.is_time(locked_on))
) WITH (fillfactor = 50);  -- every row is updated every two seconds, in place

-- A worker's share of a queue's max_workers, as the leader split it.
CREATE TABLE awa.slots (
    queue     text NOT NULL,
    worker_id uuid NOT NULL REFERENCES awa.workers (id) ON DELETE CASCADE,
    slots     int  NOT NULL CONSTRAINT slots_are_counted CHECK (slots >= 0),
    PRIMARY KEY (queue, worker_id)
);
CREATE INDEX slots_worker ON awa.slots (worker_id);

-- Always one row: the last process that won the election. It still leads if its session holds the advisory lock.
CREATE TABLE awa.leader (
    singleton   boolean     PRIMARY KEY DEFAULT true CONSTRAINT there_is_one CHECK (singleton),
    worker_id   uuid,
    hostname    text        CONSTRAINT hostname_is_plain CHECK (awa.is_plain(hostname)),
    pid         int,
    epoch       bigint      NOT NULL DEFAULT 0 CONSTRAINT epoch_is_counted CHECK (epoch >= 0),  -- an election adds 1
    elected_at  timestamptz CONSTRAINT elected_at_is_between_1900_and_9000 CHECK (awa.is_time(elected_at)),
    backend_pid int         -- of the session that got the lock
);
INSERT INTO awa.leader DEFAULT VALUES;

-- Return the sessions that hold the leader's lock. Every login can hold it: only awa.leader.backend_pid leads.
CREATE FUNCTION awa.leader_lock_holders(lock_key bigint) RETURNS SETOF int LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT pid
    FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32 | objid::bigint) = lock_key;
END;

-- The workers that want a wake-up when a job of a queue becomes available. NOTIFY holds a lock on the whole server
-- until its transaction has committed, so transactions that notify commit one after another. Therefore awa notifies
-- only workers that wait: a worker subscribes when it is idle, and unsubscribes when it is busy enough to poll.
CREATE TABLE awa.listening (
    queue     text NOT NULL,
    worker_id uuid NOT NULL REFERENCES awa.workers (id) ON DELETE CASCADE,
    PRIMARY KEY (queue, worker_id)
);
CREATE INDEX listening_worker ON awa.listening (worker_id);

-- Notify subscribed workers that the queues have available jobs, and the leader of a due time that is close. The leader
-- finds later due times by polling. It has a channel of its own, so that jobs do not wake up the candidates, which each
-- worker has.
CREATE FUNCTION awa.wake(ready_queues text[], due timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp {stable plans} AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY coalesce(ready_queues, '{}') LOOP
        IF EXISTS (SELECT FROM awa.listening WHERE queue = name) THEN
            PERFORM pg_notify('awa', 'ready:' || name);
        END IF;
    END LOOP;
    IF due < now() + interval '10 seconds' THEN
        PERFORM pg_notify('awa' || ':leader', 'due:');
    END IF;
END $$;
