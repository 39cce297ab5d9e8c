-- Rows that evaded the constraints.

-- Discard unfinished jobs that break a rule of awa.job_columns: available, scheduled, retryable, waiting, running →
-- failed. Constraints keep such rows out of all tables but awa.running; others are older than the constraint, or it was
-- dropped. A statement that changes many jobs fails because of one of them, each time. The worker and the leader call
-- this function after such an error.
--   source: the table · after_id: start behind this id · max_jobs: look at this many
--   silence: take a running job only if its heartbeat is older than this or it is past its deadline
-- Returns one row: the discarded jobs as arrays, and the id to continue after (NULL: that was the last).
CREATE FUNCTION awa.discard_invalid_jobs(source text, after_id bigint, max_jobs int, silence interval)
RETURNS TABLE (ids bigint[], queues text[], kinds text[], rules text[], continue_after bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    broken_rules CONSTANT text := (
        SELECT string_agg(format('CASE WHEN (%s) IS FALSE THEN %L END', pg_get_expr(conbin, conrelid), conname), ', '
                          ORDER BY conname)
        FROM pg_constraint
        WHERE conrelid = to_regclass(format('%I.%I', 'awa', 'job_columns')) AND contype = 'c');
BEGIN
    RETURN QUERY EXECUTE format($query$
        WITH read AS MATERIALIZED (
            SELECT ctid AS row, id,
                   concat_ws(', ', %1$s,
                             CASE WHEN attempt >= max_attempts AND %2$L <> 'running' THEN 'an_attempt_is_left' END,
                             CASE WHEN %4$s THEN 'id_is_unique' END) AS rules
            FROM awa.%2$I AS job
            WHERE id > $1
            ORDER BY id
            LIMIT $2
        ),
        deleted AS (
            DELETE FROM awa.%2$I
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.%2$I
                                    WHERE ctid = ANY (ARRAY(SELECT row FROM read WHERE rules <> '')) AND %3$s
                                    FOR UPDATE SKIP LOCKED))
            RETURNING *
        ),
        explained AS MATERIALIZED (SELECT deleted.*, read.rules FROM deleted JOIN read USING (id)),
        -- A job whose id another job has gets a new one. A payload stays with the other job.
        numbered AS MATERIALIZED (
            SELECT *, CASE WHEN EXISTS (SELECT FROM awa.dead WHERE dead.id = explained.id) THEN nextval('awa.job_id')
                           ELSE id END AS new_id
            FROM explained
        ),
        discarded AS (
            INSERT INTO awa.dead (state, id, args, {carried without id, args}, run_at, errors, attempt, lease)
            SELECT 'failed', new_id, CASE WHEN new_id = id THEN args ELSE {args} END, {carried without id, args}, run_at,
                   awa.append_error(errors, attempt, 'the row has values that awa cannot work with: ' || rules, NULL,
                                    '{"invalid": true}'),
                   attempt, lease
            FROM numbered
        )
        SELECT coalesce(array_agg(new_id), '{}'), coalesce(array_agg(queue), '{}'), coalesce(array_agg(kind), '{}'),
               coalesce(array_agg(rules), '{}'), (SELECT max(id) FROM read HAVING count(*) = $2)
        FROM numbered $query$,
        broken_rules, source,
        CASE source WHEN 'running' THEN '((heartbeat_at < now() - $3) IS NOT FALSE OR deadline_at < now())' ELSE 'true' END,
        (SELECT string_agg(format('EXISTS (SELECT FROM awa.%I AS other WHERE other.id = job.id)', other), ' OR ')
         FROM unnest('{ready,scheduled,running,dead}'::text[]) AS other WHERE other <> source))
    USING after_id, max_jobs, silence;
END $$;

REVOKE EXECUTE ON FUNCTION awa.discard_invalid_jobs FROM PUBLIC;
