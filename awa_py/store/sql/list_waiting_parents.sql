-- Jobs that wait for children, in the order of their ids. · $1 after this id · $2 at most this many
SELECT id FROM awa.scheduled WHERE waits ? 'children' AND id > $1 ORDER BY id LIMIT $2
