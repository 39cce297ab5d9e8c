"""What a contender has to say of itself; the workloads do the rest."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

OnStart = Callable[[int], None]  # a handler calls it first, with the number that its job carries


class Client(Protocol):
    """How this queue's users enqueue. Returns once PostgreSQL has acknowledged the commit."""

    async def enqueue(self, number: int) -> Any: ...

    async def enqueue_many(self, numbers: Sequence[int]) -> Any: ...


class Contender(ABC):
    """One queue, set up as its documentation and its source say is best."""

    UNFINISHED: ClassVar[str]
    """SQL: whether a job waits or runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def install(self) -> None:
        """Makes the schema in an empty database."""

    @abstractmethod
    def client(self, connections: int) -> AbstractAsyncContextManager[Client]:
        """A client with at most so many connections; with one, it is a plain connection where that is faster."""

    @abstractmethod
    def worker(self, on_start: OnStart) -> AbstractAsyncContextManager[None]:
        """A worker that works for as long as the context is open."""
