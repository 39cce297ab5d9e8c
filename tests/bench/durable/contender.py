"""The interface that a system implements for the workloads. Only asyncpg and uvloop may be imported here."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

Send = Callable[[int], Awaitable[None]]  # sends the signal that the job with this number waits for


class Stopwatch:
    """The time of the first handler's start and of the last one's end. Handlers call it, from any thread."""

    def __init__(self) -> None:
        self.started_ns = 0
        self.ended_ns = 0

    def start(self) -> None:
        self.started_ns = self.started_ns or time.monotonic_ns()

    def end(self) -> None:
        self.ended_ns = time.monotonic_ns()


class Contender(ABC):
    """One system, configured as it is fastest."""

    UNFINISHED: ClassVar[str]
    """SQL query: is a job waiting or running?"""
    WAITING: ClassVar[str]
    """SQL query: the number of jobs that wait for a signal."""
    HAS_QUEUE: ClassVar[bool] = True
    """Whether jobs of steps are enqueued before the worker starts. If not, its fastest way is to call them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stopwatch = Stopwatch()

    @abstractmethod
    async def install(self) -> None:
        """Create the schema in an empty database."""

    @abstractmethod
    def worker(self, workload: str, jobs: int) -> AbstractAsyncContextManager[None]:
        """Run a worker while the context is open, with the settings that are best for this number of jobs."""

    @abstractmethod
    async def enqueue_steps(self, jobs: int, steps: int) -> None:
        """Enqueue jobs of this many steps. Without a queue: run them, and return when they have ended."""

    @abstractmethod
    async def enqueue_parent(self, children: int) -> None:
        """Enqueue a job that spawns this many children and waits for the results of all."""

    @abstractmethod
    async def enqueue_waiting(self, jobs: int) -> None:
        """Enqueue jobs that wait for one signal each, numbered from 0."""

    @abstractmethod
    def sender(self) -> AbstractAsyncContextManager[Send]:
        """Open a connection of a client that sends signals."""
