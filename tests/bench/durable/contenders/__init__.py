"""One program per system: `python -m tests.bench.durable.contenders.NAME WORKLOAD PARAMS`, with BENCH_DATABASE_URL."""
