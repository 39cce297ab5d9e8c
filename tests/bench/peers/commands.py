"""The command and the environment of a case's process."""

import json
import os

from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.environments import HERE, NODE, ROOT, python_of
from tests.bench.peers.plan import Case

AWA = ROOT / ".venv" / "bin" / "awa"
KIT_WORKLOADS = ("latency", "steady")  # they depend on how they are measured, so awa uses the same code as its peers
FLAGS = ("batch", "discard", "pinned", "sync", "unique", "worker")


def command(case: Case, url: str) -> list[str]:
    config = CONTENDERS[case.contender]
    if config.runtime == "awa" and case.kind not in KIT_WORKLOADS:
        return [str(AWA), "bench", case.kind, *_options(case), "--json", "--database-url", url]
    if config.runtime == "npm":
        return ["node", str(HERE / "contenders" / config.program), case.kind, json.dumps(case.params)]
    module = f"tests.bench.peers.contenders.{config.program}"
    return [python_of(config), "-m", module, case.kind, json.dumps(case.params)]


def environment(url: str) -> dict[str, str]:
    """Return the environment without variables that are meant for other databases and workers."""
    removed = ("AWA_", "PG", "GRAPHILE_", "DATABASE_URL", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    return kept | {"BENCH_DATABASE_URL": url, "BENCH_NODE": str(NODE), "NODE_ENV": "production"}


def _options(case: Case) -> list[str]:
    """Return the parameters as options of `awa bench`."""
    options = []
    for name, value in case.params.items():
        flag = f"--{name.replace('_', '-')}"
        if name not in FLAGS:
            options += [flag, str(value)]
        elif value:
            options.append(flag)
    if case.params.get("mode") == "producers":
        options += ["--producers", "32"]
    return options
