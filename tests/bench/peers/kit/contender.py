"""The interface that a contender implements for the workloads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

from tests.bench.peers.kit.shape import OnStart, Shape

__all__ = ["Client", "Contender", "OnStart"]


class Client(Protocol):
    """Enqueue jobs as users of the queue do. Return when PostgreSQL has acknowledged the commit."""

    async def enqueue(self, number: int) -> Any: ...

    async def enqueue_many(self, numbers: Sequence[int]) -> Any: ...


class Contender(ABC):
    """One queue, configured as its documentation and source recommend."""

    UNFINISHED: ClassVar[str]
    """SQL query: is a job waiting or running?"""

    def __init__(self, url: str, shape: Shape) -> None:
        self.url = url
        self.shape = shape

    @abstractmethod
    async def install(self) -> None:
        """Create the schema in an empty database."""

    @abstractmethod
    def client(self, connections: int) -> AbstractAsyncContextManager[Client]:
        """Open a client with at most this many connections; for 1, a plain connection if that is faster."""

    @abstractmethod
    def worker(self, on_start: OnStart) -> AbstractAsyncContextManager[None]:
        """Run a worker while the context is open."""
