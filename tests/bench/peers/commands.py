"""How a case becomes a process: the command, and its environment."""

import json
import os

from tests.bench.peers.entrants import ENTRANTS
from tests.bench.peers.environments import HERE, NODE, ROOT, python_of
from tests.bench.peers.plan import Case

AWA = ROOT / ".venv" / "bin" / "awa"
KIT = ("latency", "steady")  # the same code for awa as for the others: these depend on how they are measured
FLAGS = ("batch", "discard", "pinned", "worker")


def command(case: Case, url: str) -> list[str]:
    entrant = ENTRANTS[case.entrant]
    if entrant.runtime == "awa" and case.kind not in KIT:
        return [str(AWA), "bench", case.kind, *_options(case), "--json", "--database-url", url]
    if entrant.runtime == "npm":
        return ["node", str(HERE / "contenders" / entrant.program), case.kind, json.dumps(case.params)]
    module = f"tests.bench.peers.contenders.{entrant.program}"
    return [python_of(entrant), "-m", module, case.kind, json.dumps(case.params)]


def environment(url: str) -> dict[str, str]:
    """Ours without what was meant for other databases and other workers."""
    foreign = ("AWA_", "PG", "GRAPHILE_", "DATABASE_URL", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"BENCH_DATABASE_URL": url, "BENCH_NODE": str(NODE), "NODE_ENV": "production"}


def _options(case: Case) -> list[str]:
    """The parameters in the words of `awa bench`."""
    words = []
    for name, value in case.params.items():
        if name not in FLAGS:
            words += [f"--{name}", str(value)]
        elif value:
            words.append(f"--{name}")
    if case.params.get("mode") == "producers":
        words += ["--producers", "32"]
    return words
