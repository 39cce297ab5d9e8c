"""Compare awa's durable jobs with DBOS and Absurd, with the same workloads.

`make bench-durable` runs it and writes docs/benchmarks/durable.md. It uses the server, the rounds and the installations
of `tests.bench.peers`. The parts: `plan` (who runs what), `kit` (the workloads), `contenders/` (one program per
system), `report`.
"""
