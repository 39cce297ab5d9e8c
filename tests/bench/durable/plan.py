"""The systems, and their parameters in each workload.

The numbers differ between systems, so that a run takes about a second for a fast one and a few for a slow one.
"""

import json
from typing import Any

from tests.bench.peers.configs import ContenderConfig
from tests.bench.peers.environments import python_of
from tests.bench.peers.plan import QUICK_DIVISOR, Case

STEPS_PER_JOB = 10
CONTENDERS = {
    config.name: config
    for config in (
        ContenderConfig(
            name="awa",
            label="awa",
            runtime="own",
            program="awa",
            configuration="As `awa worker` runs it: 500 slots, all other settings at their defaults, uvloop.",
        ),
        ContenderConfig(
            name="dbos",
            label="DBOS",
            runtime="pip",
            program="dbos",
            package="dbos",
            configuration=(
                "Synchronous workflows, called from 4 threads; 16 threads for children, one thread per waiting "
                "workflow; a pool of 20; results of children polled every 10 ms. Its queue, asynchronous workflows and "
                "more threads were not faster."
            ),
        ),
        ContenderConfig(
            name="absurd",
            label="Absurd",
            runtime="pip",
            program="absurd",
            package="absurd",
            configuration=(
                "8 asynchronous clients in one process, each with its connection, 10 tasks at once and a poll every "
                "20 ms; uvloop. One client for a job alone. Children are in a second queue, with 4 clients: it refuses "
                "to wait for a task of the same queue."
            ),
        ),
    )
}
PARAMS: dict[str, dict[str, dict[str, Any]]] = {
    "steps": {
        "awa": {"jobs": 5_000, "steps": STEPS_PER_JOB},
        "dbos": {"jobs": 200, "steps": STEPS_PER_JOB},
        "absurd": {"jobs": 500, "steps": STEPS_PER_JOB},
    },
    "alone": {"awa": {"steps": 2_000}, "dbos": {"steps": 500}, "absurd": {"steps": 1_000}},
    "children": {"awa": {"children": 10_000}, "dbos": {"children": 500}, "absurd": {"children": 500}},
    "signals": {"awa": {"jobs": 5_000}, "dbos": {"jobs": 500}, "absurd": {"jobs": 1_000}},
    "context": {
        "awa:plain": {"jobs": 100_000, "context": False},
        "awa:Context": {"jobs": 100_000, "context": True},
    },
}
WORKLOADS = tuple(PARAMS)
SCALED = ("jobs", "children")


def cases(workload: str, *, quick: bool = False) -> list[Case]:
    """Return the cases of a workload, in the order of the tables."""
    found = []
    for key, params in PARAMS[workload].items():
        name, _, variant = key.partition(":")
        scaled = {name: value // QUICK_DIVISOR if quick and name in SCALED else value for name, value in params.items()}
        found.append(Case(workload=workload, contender=name, kind=workload, params=scaled, variant=variant))
    return found


def command(case: Case, _: str) -> list[str]:
    """Return the command of a case. It finds the database in its environment."""
    config = CONTENDERS[case.contender]
    module = f"tests.bench.durable.contenders.{config.program}"
    return [python_of(config), "-m", module, case.kind, json.dumps(case.params)]
