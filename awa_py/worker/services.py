"""Background services: what runs next to the claim loop for as long as the worker runs."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from awa_py.observability.checks import HealthCheck


class BackgroundService(Protocol):
    """A task or thread that is started and stopped."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


class MonitoredService(BackgroundService, Protocol):
    """A service that reports its health, e.g. the candidate for leadership. Its methods may be called in any thread."""

    def responds(self, within_s: float) -> bool: ...
    def checks(self) -> list[HealthCheck]: ...


@asynccontextmanager
async def running(services: Iterable[BackgroundService]) -> AsyncIterator[None]:
    """Start the services in this order, and stop them in reverse order, each even if another one failed."""
    async with AsyncExitStack() as stack:
        for service in services:
            service.start()
            stack.push_async_callback(service.stop)
        yield
