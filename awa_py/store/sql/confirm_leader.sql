-- Write the leader's row again, unchanged: the commit shows that the server can commit, e.g. that no synchronous standby hangs.
UPDATE awa.leader SET epoch = epoch
