"""Compare awa with other queues on PostgreSQL and with plain SQL, with the same workloads.

`make bench-peers` runs it and writes docs/benchmarks.md. The parts: `plan` (who runs what), `environments` (the peers'
own installations), `harness` (the server, a database per run, the rounds), `contenders/` (one program per queue),
`kit/` (the workloads, the same for each Python contender; `contenders/kit.mjs` is its counterpart for Node), `report`.
"""
