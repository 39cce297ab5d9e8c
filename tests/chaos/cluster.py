"""The cluster of a run: PostgreSQL, workers and leaders as real processes, and a proxy in front of each of them."""

import asyncio
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from tests.chaos.handlers import DURABLE_QUEUE
from tests.chaos.proxy import FaultProxy, Trap
from tests.chaos.server import Site, SmallDisk, free_port
from tests.processes import Process

STALENESS_S = 5.0
GONE_AFTER_S = 3.0
LEADER_TIMEOUT_S = 4.0
SETTINGS = {
    "AWA_HEARTBEAT_INTERVAL": "1s",
    "AWA_HEARTBEAT_STALENESS": f"{STALENESS_S}s",
    "AWA_REPORT_INTERVAL": "500ms",
    "AWA_SHARE_STALENESS": "3s",
    "AWA_GONE_AFTER": f"{GONE_AFTER_S}s",
    "AWA_HEARTBEAT_RESCUE_INTERVAL": "500ms",
    "AWA_DEADLINE_RESCUE_INTERVAL": "500ms",
    "AWA_PROMOTE_INTERVAL": "1s",
    "AWA_LEADER_TIMEOUT": f"{LEADER_TIMEOUT_S}s",
    "AWA_LEADER_CHECK_INTERVAL": "1s",
    "AWA_SHUTDOWN_TIMEOUT": "3s",
    "AWA_LOG_FORMAT": "json",
}
STOP_TIMEOUT_S = 30
APP = "tests.chaos.handlers:app"
WORKER = ("worker", APP, "-q", "default=20", "-q", "keyed=10", "-q", f"{DURABLE_QUEUE}=10", "--concurrency", "30")
LEADER = ("maintenance", APP)
CREATE_DURABLE_QUEUE = "INSERT INTO awa.queues (name, durable_claims) VALUES ($1, true)"


@dataclass(slots=True, kw_only=True)
class Life:
    """One process, from its start to its end, and when it was frozen."""

    name: str
    pid: int
    began: float
    ended: float | None = None
    killed: bool = False
    frozen: list[tuple[float, float]] = field(default_factory=list)


def _address(site: Site) -> tuple[str, int]:
    return site.address


class Network:
    """The way of one process to the servers: one proxy for each site."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._proxies = {site: FaultProxy(free_port(), partial(_address, site)) for site in sites}

    @property
    def proxies(self) -> list[FaultProxy]:
        return list(self._proxies.values())

    async def open(self) -> None:
        for proxy in self.proxies:
            await proxy.open()

    def refuse(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()

    def cut(self, site: Site | None = None) -> None:
        """Reset all connections, or those to one site."""
        for proxy in self.proxies if site is None else [self._proxies[site]]:
            proxy.cut()

    def stall(self, stalled: bool) -> None:
        for proxy in self.proxies:
            (proxy.flowing.clear if stalled else proxy.flowing.set)()

    def delay(self, delay_s: float) -> None:
        for proxy in self.proxies:
            proxy.delay_s = delay_s

    def set_trap(self, trap: Trap | None) -> None:
        for proxy in self.proxies:
            proxy.trap = trap

    async def close(self) -> None:
        for proxy in self.proxies:
            await proxy.close()

    def url(self, origin: str) -> str:
        """Return the URL that leads through the proxies to whichever server is the primary."""
        account = urlsplit(origin).netloc.rpartition("@")[0]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        return f"postgresql://{account}@{hosts}/awa?target_session_attrs=primary"


class Node:
    """A worker or a leader, which is started again after it was killed."""

    def __init__(self, cluster: "Cluster", name: str, command: Sequence[str]) -> None:
        self.name = name
        # Half of the nodes try the servers in the other order.
        self.network = Network(cluster.sites if int(name[-1]) % 2 else cluster.sites[::-1])
        self.lives: list[Life] = []
        self._cluster = cluster
        self._command = command
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def start(self) -> None:
        self.end()
        env = self._cluster.environment(self.network)
        log = self._cluster.directory / f"{self.name}.log"
        self._process = Process(*self._command, env=env, log=log)
        self.lives.append(Life(name=self.name, pid=self._process.pid, began=time.time()))

    def kill(self) -> None:
        self.life.killed = True
        self.end()

    async def stop(self) -> int | None:
        """Stop it as a service manager does, and return its exit code; None if it does not end."""
        self.process.send(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.life.ended = time.time()

    async def freeze(self, seconds: float) -> None:
        began = time.time()
        self.process.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.life.frozen.append((began, time.time()))
            self.process.send(signal.SIGCONT)

    def end(self) -> None:
        if self._process is not None:
            self._process.end()
            self.life.ended = self.life.ended or time.time()


class Cluster:
    """Everything that a run consists of, in a directory of its own."""

    def __init__(self, *, workers: int = 3, leaders: int = 2, directory: Path | None = None) -> None:
        self.directory = directory or Path(tempfile.mkdtemp(prefix="awa-chaos-"))
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(0o711)  # PostgreSQL may run as another user
        self.attempts_log = self.directory / "attempts.jsonl"
        self.disk = SmallDisk(self.directory / "disk")
        self.sites = [Site(name, self.disk.path / name) for name in ("a", "b")]
        self.primary = self.sites[0]
        self.producers = Network(self.sites)
        # The first worker is a candidate too.
        self.workers = [
            Node(self, f"worker-{n}", WORKER if n == 1 else (*WORKER, "--no-maintenance"))
            for n in range(1, workers + 1)
        ]
        self.leaders = [Node(self, f"leader-{n}", LEADER) for n in range(1, leaders + 1)]
        self._stack = AsyncExitStack()

    @property
    def nodes(self) -> list[Node]:
        return [*self.workers, *self.leaders]

    @property
    def networks(self) -> list[Network]:
        return [self.producers, *(node.network for node in self.nodes)]

    @property
    def spare(self) -> Site:
        """Return the site that is not the primary's."""
        return next(site for site in self.sites if site is not self.primary)

    def environment(self, network: Network) -> dict[str, str]:
        return {
            **SETTINGS,
            "AWA_DATABASE_URL": network.url(self.primary.postgres.url),
            "AWA_CHAOS_LOG": str(self.attempts_log),
        }

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.primary.start)
            await migrations.migrate(Database(self.primary.postgres.url, Schema()))
            async with self.primary.connection() as connection:
                await connection.execute(CREATE_DURABLE_QUEUE, DURABLE_QUEUE)
            for network in self.networks:
                await network.open()
            for node in self.nodes:
                node.start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        for node in self.nodes:
            node.end()
        for network in self.networks:
            await network.close()
        for site in self.sites:
            log = Path(site.directory / "server.log")
            if log.exists():
                shutil.copyfile(log, self.directory / f"postgres-{site.name}.log")
            await asyncio.to_thread(site.remove)
        self.disk.remove()

    def remove(self) -> None:
        """Delete the run's directory with all logs."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def crashed_nodes(self) -> list[Node]:
        """Return the nodes that ended although nobody ended them."""
        return [node for node in self.nodes if node.life.ended is None and not node.process.running]
