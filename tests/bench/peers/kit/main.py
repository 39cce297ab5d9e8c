"""A contender's command line: WORKLOAD and its parameters as JSON. Prints the result as one line of JSON."""

import json
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any

import uvloop

from tests.bench.peers.kit.contender import Contender
from tests.bench.peers.kit.drain import drain
from tests.bench.peers.kit.enqueue import enqueue
from tests.bench.peers.kit.latency import latency, steady
from tests.bench.peers.kit.shape import Shape
from tests.bench.peers.kit.worker_process import run_worker

WORKLOADS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any] | None]]] = {
    "drain": drain,
    "enqueue": enqueue,
    "latency": latency,
    "steady": steady,
    "worker": run_worker,
}


def main(contender: type[Contender]) -> None:
    workload, params = sys.argv[1], json.loads(sys.argv[2])
    names = {field.name for field in fields(Shape)}
    shape = Shape(**{name: value for name, value in params.items() if name in names})
    others = {name: value for name, value in params.items() if name not in names}
    result = uvloop.run(WORKLOADS[workload](contender(os.environ["BENCH_DATABASE_URL"], shape), **others))
    if result is not None:
        print(json.dumps(result), flush=True)
