-- The number of a job's children in each state. · $1 the parent's id
SELECT state, count(*) AS jobs
FROM (SELECT state FROM awa.jobs WHERE parent_id = $1 OFFSET 0) AS children
GROUP BY state
