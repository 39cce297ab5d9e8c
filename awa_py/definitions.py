"""Job definitions: functions decorated with `@app.job`.

The decorator keeps the signature for type checkers. A `JobDefinition[Params, Result, Function]` is enqueued with
`Params`, which are those of the function without its Context; its jobs have a `Result`, which for a coroutine function
is the awaited one; and calling it calls the `Function` itself.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from awa_py import durations
from awa_py.arguments.json_text import dumps
from awa_py.client import Client
from awa_py.connections import Connection
from awa_py.durations import Duration
from awa_py.errors import ConfigError, InvalidJob, InvalidStep
from awa_py.model.context import BatchJob, Context
from awa_py.model.flow import PartialJob
from awa_py.model.job import MAX_ATTEMPTS, Job, NewJob, Result
from awa_py.model.options import JobOptions, JobTemplate, check_names, make_template
from awa_py.model.outcomes import Next
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

    def partial(self, **arguments: Any) -> PartialJob:
        """Return a job for a flow, with some of the arguments: the others are results of the jobs before it."""
        handler, settings = self._handler, self._owner.settings
        if self._options.get("unique"):
            raise InvalidJob(f"{self.kind}: a job of a flow has no unique key: use .options(unique=False)")
        args = dumps(handler.signature.dump_some(arguments), what=self.kind, limit=settings.max_args_bytes)
        key = self._options.get("concurrency_key")
        if key != handler.options.get("concurrency_key"):
            raise InvalidJob(f"{self.kind}: partial() takes the concurrency_key of the declaration, not of .options(…)")
        # What depends on the arguments is completed by the database, when all of them are known.
        options: JobOptions = {**self._options, "concurrency_key": None, "concurrency_limit": None, "ordered": None}
        template = make_template(self.kind, options, settings, self._owner.registry.routes.queue_for(self.kind))
        return PartialJob(job=template.fill(args), signature=handler.signature)

    def next(self, *args: Params.args, **kwargs: Params.kwargs) -> Next:
        """Check the arguments and return a Next: a handler that returns it makes this the next state of its job."""
        return self._next(None, args, kwargs)

    def later(self, delay: Duration, /, *args: Params.args, **kwargs: Params.kwargs) -> Next:
        """Return a Next that makes this the next state of the job after `delay`."""
        return self._next(delay, args, kwargs)

    def _next(self, delay: Duration | None, args: tuple[object, ...], kwargs: dict[str, object]) -> Next:
        if self._connection is not None or self._options != self._handler.options:
            raise InvalidStep(
                f"{self.kind}: the options of a state are those of its declaration: leave out .options(…)"
            )
        try:
            return Next(self.kind, self._handler.signature.dump(args, kwargs), delay=delay)
        except InvalidJob as error:
            raise InvalidStep(f"Next: {error}") from None

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
        self,
        function: None = None,
        /,
        *,
        kind: str | None = None,
        retries: int | None = None,
        **options: Unpack[JobOptions],
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
        retries: int | None = None,
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
        retries: int | None = None,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Declare a job. For the options, see `JobOptions`; `retries=2` is the same as `max_attempts=3`.

        Its kind is `kind`, or the function's name, or `Class.name` for a `@staticmethod` of a class.

        With `batch`, the handler is called with a list of at most that many jobs (`awa.BatchJob`). The first job of a
        batch waits at most `linger` for the others. The handler may settle each job on its own.
        """
        merged: JobOptions = {**self._options, **options, **_attempts(retries, options)}
        decorator = JobDecorator(self._owner, merged, kind or self._kind, _batching(batch, linger) or self._batching)
        return decorator if function is None else decorator._declare(function)

    def _declare(self, function: Callable[..., Any]) -> JobDefinition:
        if isinstance(function, staticmethod):
            function = function.__func__
        kind = self._kind or _default_kind(function)
        check_names(kind, self._options)
        handler = Handler.from_function(kind, function, self._batching, self._options)
        # Check the options now, not at the first enqueue.
        template = make_template(kind, self._options, self._owner.settings, signature=handler.signature)
        timeout = template.spec.timeout
        if self._batching and timeout and self._batching.linger_s >= timeout.total_seconds():
            raise ConfigError(f"{kind}: linger must be shorter than the timeout, or jobs time out before they start")
        self._owner.registry.add(handler)
        return JobDefinition(self._owner, handler, self._options)


def _default_kind(function: Callable[..., Any]) -> str:
    """Return the function's name, after the name of its class if it has one."""
    name: str = getattr(function, "__qualname__", function.__name__)
    return name.rpartition("<locals>.")[2]


def _attempts(retries: int | None, options: JobOptions) -> JobOptions:
    """Return the option that allows this number of retries."""
    if retries is None:
        return {}
    if options.get("max_attempts") is not None:
        raise ConfigError("give either retries or max_attempts, not both: 2 retries are 3 attempts")
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries < MAX_ATTEMPTS:
        raise ConfigError(f"retries is a number from 0 to {MAX_ATTEMPTS - 1}, not {retries!r}")
    return {"max_attempts": retries + 1}


def _batching(size: int | None, linger: Duration | None) -> Batching | None:
    if size is None:
        if linger is not None:
            raise ConfigError("linger needs batch: it is how long the first job of a batch waits for the others")
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"batch is the largest number of jobs in a call: 1 or more, not {size!r}")
    return Batching(size=size, linger_s=(DEFAULT_LINGER if linger is None else durations.parse(linger)).total_seconds())
