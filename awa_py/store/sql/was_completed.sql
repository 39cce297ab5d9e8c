-- Whether an attempt completed its job. · $1 job id · $2 lease
SELECT EXISTS (SELECT FROM awa.completed WHERE id = $1 AND lease = $2)
