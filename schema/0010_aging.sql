-- The line of jobs with a key, by priority: aging finds there who has waited for longest.
CREATE INDEX ready_keyed_order ON awa.ready (queue, priority, pos) WHERE concurrency_key IS NOT NULL;
