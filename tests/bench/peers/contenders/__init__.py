"""One program per queue: `python -m tests.bench.peers.contenders.NAME WORKLOAD PARAMS`, with BENCH_DATABASE_URL."""
