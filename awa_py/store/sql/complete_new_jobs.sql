-- The jobs of a JSON array with the values that their kinds declare. Raises an error if their arguments do not fit.
-- $1 text: the array that awa.enqueue_many takes
SELECT awa.complete_jobs($1::text::jsonb)::text
