"""A fault: what it does to the cluster, chosen by the random generator before the run."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from tests.chaos.cluster import Cluster, Node

MAX_RECOVERY_S = 20.0  # how long after a fault jobs must complete again


@dataclass(slots=True, kw_only=True)
class Record:
    """What a fault did, and when: for the checker and the report."""

    name: str
    detail: str
    began: float = 0.0
    ended: float = 0.0
    healed: float = 0.0  # when everything could go on; the time of its end, unless it goes on without doing harm
    # When PostgreSQL may have lost what was not yet flushed: claims commit asynchronously.
    crashes: list[tuple[float, float]] = field(default_factory=list)
    # When a node could not reach PostgreSQL while others could.
    cut_off: list[tuple[str, float, float]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  # what the fault itself observed
    skipped: str = ""

    def __str__(self) -> str:
        return f"{self.name}{f' ({self.detail})' if self.detail else ''}"


class Fault:
    """One fault. Its choices are made in the constructor, so that a seed gives the same schedule each time."""

    name: ClassVar[str]
    what: ClassVar[str]  # a sentence for the report
    area: ClassVar[str]  # two faults may happen at once if their areas differ
    background: ClassVar[bool] = False  # goes on while others happen

    def __init__(self, rng: random.Random) -> None:
        self.rng = random.Random(rng.random())
        self.record = Record(name=self.name, detail="")

    def impossible(self, cluster: Cluster) -> str:
        """Return why this machine does not allow the fault, or an empty string."""
        return ""

    async def run(self, cluster: Cluster) -> None:
        """Cause the fault, and return when it has ended."""
        raise NotImplementedError

    def note(self, detail: str) -> None:
        self.record.detail = detail

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """Record that PostgreSQL loses its memory in the meantime."""
        began = time.time()
        yield
        self.record.crashes.append((began, time.time()))

    @contextmanager
    def cutting_off(self, *nodes: Node) -> Iterator[None]:
        """Record that these nodes, and not all of them, cannot reach PostgreSQL in the meantime."""
        began = time.time()
        yield
        self.record.cut_off += [(node.name, began, time.time()) for node in nodes]

    def choose(self, nodes: list[Node]) -> Node:
        return self.rng.choice(nodes)
