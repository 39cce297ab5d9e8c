"""Job definitions: functions decorated with `@app.job`.

The decorator keeps the signature for type checkers. A `JobDefinition[Params, Result, Function]` is enqueued with
`Params`, which are those of the function without its Context; its jobs have a `Result`, which for a coroutine function
is the awaited one; and calling it calls the `Function` itself.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from awa_py import durations
from awa_py.client import Client
from awa_py.db.types import Connection
from awa_py.durations import Duration
from awa_py.errors import ConfigError
from awa_py.model.context import BatchJob, Context
from awa_py.model.job import Job, NewJob, Result
from awa_py.model.options import JobOptions, JobTemplate, check_names, make_template
from awa_py.model.registry import Batching, Handler, Registry
from awa_py.model.routes import Routes
from awa_py.settings import Settings

if TYPE_CHECKING:
    import typing_extensions  # type checkers know it without the package; typing has `default` since Python 3.13

    Params = typing_extensions.ParamSpec("Params", default=...)
    Function = typing_extensions.TypeVar(
        "Function", bound=Callable[..., Any], default=Callable[..., Any], covariant=True
    )
else:
    Params = ParamSpec("Params")
    Function = TypeVar("Function")

P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_LINGER = timedelta(milliseconds=50)


class JobOwner(Protocol):
    """The parts of an App that its definitions use."""

    settings: Settings

    @property
    def registry(self) -> Registry: ...
    @property
    def client(self) -> Client: ...


class JobDefinition(Generic[Params, Result, Function]):
    """A function that `@app.job` made a job of. Call it to run the function, `enqueue` it to have a worker run it."""

    def __init__(
        self, owner: JobOwner, handler: Handler, options: JobOptions, connection: Connection | None = None
    ) -> None:
        self._owner = owner
        self._handler = handler
        self._options = options
        self._connection = connection
        self._template: JobTemplate | None = None
        self._routes: Routes | None = None  # the routes that the template was made with
        self.__name__ = handler.kind
        self.__doc__ = handler.function.__doc__
        self.__wrapped__ = handler.function

    @property
    def kind(self) -> str:
        return self._handler.kind

    @property
    def __call__(self) -> Function:
        """The function itself, as if it had not been decorated."""
        return cast(Function, self._handler.function)

    def options(
        self, *, connection: Connection | None = None, **options: Unpack[JobOptions]
    ) -> "JobDefinition[Params, Result, Function]":
        """Return the same job with other options. With `connection`, enqueue in that connection's transaction."""
        check_names(self.kind, options)
        merged: JobOptions = {**self._options, **options}
        return JobDefinition(self._owner, self._handler, merged, connection or self._connection)

    def new(self, *args: Params.args, **kwargs: Params.kwargs) -> NewJob:
        """Check the arguments and return a job for `app.enqueue_many`."""
        handler, settings, routes = self._handler, self._owner.settings, self._owner.registry.routes
        args_json = handler.signature.write(args, kwargs, handler.kind, settings.max_args_bytes)
        if self._template is None or self._routes is not routes:  # checked once for all jobs of this definition
            queue = routes.queue_for(handler.kind)
            self._template = make_template(handler.kind, self._options, settings, queue, handler.signature)
            self._routes = routes
        return self._template.fill(args_json)

    async def enqueue(self, *args: Params.args, **kwargs: Params.kwargs) -> Job[Result]:
        """Enqueue the job. If another job holds its unique key, return that one, with `is_new` False."""
        return await self._owner.client.enqueue(self.new(*args, **kwargs), self._connection)

    def __repr__(self) -> str:
        return f"<awa job {self.kind}>"


class _Anything:
    """A type checker accepts this as a handler's first argument only if that argument may be any object."""


class JobDecorator:
    """Makes jobs of functions: `@app.job`, or `@app.job(queue="email")`."""

    def __init__(
        self, owner: JobOwner, options: JobOptions, kind: str | None = None, batching: Batching | None = None
    ) -> None:
        self._owner = owner
        self._options = options
        self._kind = kind
        self._batching = batching

    # If the first parameter may be any object, it may be a Context or not: nothing is known about the arguments.
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], object], /) -> JobDefinition: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # mypy takes the first that matches, as intended
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> JobDefinition[P, T, Callable[Concatenate[Context, P], Coroutine[Any, Any, T]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], T], /
    ) -> JobDefinition[P, T, Callable[Concatenate[Context, P], T]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> JobDefinition[P, T, Callable[P, Coroutine[Any, Any, T]]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> JobDefinition[P, T, Callable[P, T]]: ...
    @overload
    def __call__(
        self, function: None = None, /, *, kind: str | None = None, **options: Unpack[JobOptions]
    ) -> "JobDecorator": ...
    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        batch: int,
        linger: Duration | None = None,
        kind: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Callable[[Callable[[list[BatchJob]], T]], JobDefinition[..., Any, Callable[[list[BatchJob]], T]]]: ...
    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        kind: str | None = None,
        batch: int | None = None,
        linger: Duration | None = None,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Declare a job. Its kind is the function's name unless `kind` is given; for the options, see `JobOptions`.

        With `batch`, the handler is called with a list of at most that many jobs (`awa.BatchJob`). The first job of a
        batch waits at most `linger` for the others. The handler may settle each job on its own.
        """
        merged: JobOptions = {**self._options, **options}
        decorator = JobDecorator(self._owner, merged, kind or self._kind, _batching(batch, linger) or self._batching)
        return decorator if function is None else decorator._declare(function)

    def _declare(self, function: Callable[..., Any]) -> JobDefinition:
        kind = self._kind or function.__name__
        check_names(kind, self._options)
        handler = Handler.from_function(kind, function, self._batching, self._options)
        # Check the options now, not at the first enqueue.
        template = make_template(kind, self._options, self._owner.settings, signature=handler.signature)
        timeout = template.spec.timeout
        if self._batching and timeout and self._batching.linger_s >= timeout.total_seconds():
            raise ConfigError(f"{kind}: linger must be shorter than the timeout, or jobs time out before they start")
        self._owner.registry.add(handler)
        return JobDefinition(self._owner, handler, self._options)


def _batching(size: int | None, linger: Duration | None) -> Batching | None:
    if size is None:
        if linger is not None:
            raise ConfigError("linger needs batch: it is how long the first job of a batch waits for the others")
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"batch is the largest number of jobs in a call: 1 or more, not {size!r}")
    return Batching(size=size, linger_s=(DEFAULT_LINGER if linger is None else durations.parse(linger)).total_seconds())
