"""The front door: declare jobs, enqueue them, run them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from uuid import UUID, uuid4

from awa_py import durations
from awa_py.client import Client
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.types import Connection
from awa_py.durations import Duration
from awa_py.errors import ConfigError, InvalidArguments
from awa_py.maintenance.election import Candidate
from awa_py.model.context import Context
from awa_py.model.job import Job, JobSpec, NewJob
from awa_py.model.keys import KeyTemplate
from awa_py.model.options import Options
from awa_py.model.registry import Batching, CronDefinition, Handler, Registry, check_schedule
from awa_py.model.routes import Routes
from awa_py.model.worker_name import WorkerName
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings, database_url, direct_url, schema_name
from awa_py.worker.worker import DEFAULT_CONCURRENCY, Worker

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound="JobDefinition[..., Any]")
DEFAULT_LINGER = timedelta(milliseconds=50)


class JobDefinition(Generic[P, R]):
    """A declared job: call it to run it here and now, `enqueue` it to have a worker run it."""

    def __init__(self, app: "App", handler: Handler, options: Options, connection: Connection | None = None) -> None:
        self._app = app
        self._handler = handler
        self._options = options
        self._connection = connection
        self._spec: JobSpec | None = None
        self._key: KeyTemplate | None = None
        self._routes: Routes | None = None  # those that the spec went by
        self.__name__ = handler.kind
        self.__doc__ = handler.function.__doc__
        self.__wrapped__ = handler.function

    @property
    def kind(self) -> str:
        return self._handler.kind

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the handler itself, as if it had never been decorated."""
        result: R = self._handler.function(*args, **kwargs)
        return result

    def options(self, *, connection: Connection | None = None, **options: Any) -> "JobDefinition[P, R]":
        """The same job with other options: queue, priority, max_attempts, timeout, delay, run_at, deadline, tags,
        metadata, unique, parent_id, concurrency_key, concurrency_limit, ordered; and `connection`, to enqueue inside
        that connection's transaction."""
        _check_options(self.kind, options)
        changed = replace(self._options, **options)
        return JobDefinition(self._app, self._handler, changed, connection or self._connection)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job, checked, for `app.enqueue_many`."""
        handler, settings, routes = self._handler, self._app.settings, self._app.registry.routes
        if self._options.unique is not None:
            given = handler.signature.dump(args, kwargs)
            return self._options.new_job(handler.kind, given, settings, routes.queue_for(handler.kind))
        args_json = handler.signature.write(args, kwargs, handler.kind, settings.max_args_bytes)
        if self._spec is None or self._routes is not routes:  # checked once for all jobs that are made here
            self._spec = self._options.spec(handler.kind, settings, routes.queue_for(handler.kind))
            self._key = self._options.key_template(handler.kind)
            self._routes = routes
        return NewJob.from_spec(self._spec, args_json, None, None if self._key is None else self._key.fill(args_json))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueues the job; `is_new` is False where another one holds its unique key, and then that one is returned."""
        return await self._app.enqueue_new(self.new(*args, **kwargs), self._connection)

    def __repr__(self) -> str:
        return f"<awa job {self.kind}>"


class App(Client):
    """Jobs, schedules, and the database that they live in."""

    def __init__(
        self,
        url: str | None = None,
        *,
        direct_url: str | None = None,
        schema: str | None = None,
        settings: Settings | None = None,
        routes: Mapping[str, str] | None = None,
    ) -> None:
        """`direct_url` goes past a pooler, where `url` leads through one. Both go together: AWA_DIRECT_URL counts only
        beside AWA_DATABASE_URL. `routes` are as `route` declares them."""
        self._url = url
        self._direct_url = direct_url
        self.registry = Registry(Routes(routes))
        self._defaults: dict[str, Options] = {}
        database = Database(url or "", Schema(schema_name(schema)), direct_url)
        super().__init__(database, settings or Settings.from_env())

    async def __aenter__(self) -> "App":
        self._find_database()
        await super().__aenter__()
        return self

    def connect_to(self, database: Database) -> None:
        """Uses this database, whatever the app was made with: how the command line points an app to its own."""
        self.database = database
        self._url, self._direct_url = database.url, database.direct_url

    def _find_database(self) -> None:
        # Only when it is needed: an app can be imported where there is no database.
        past_pooler = self._direct_url if self._url else direct_url(self._direct_url)
        self.database = Database(database_url(self._url), self.database.schema, past_pooler)

    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> JobDefinition[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobDefinition[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        kind: str | None = None,
        batch: int | None = None,
        linger: Duration | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., R]], JobDefinition[..., R]]: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        kind: str | None = None,
        batch: int | None = None,
        linger: Duration | None = None,
        **options: Any,
    ) -> Any:
        """Declares a job. Its kind is the function's name, unless `kind` says otherwise; options as in `options()`.

        With `batch`, the handler is called with a list of up to so many jobs (`awa.BatchJob`) that came within
        `linger` of each other, and may settle each on its own.
        """
        batching = _batching(batch, linger)

        def declare(function: Callable[..., Any]) -> JobDefinition[..., Any]:
            handler = Handler.from_function(kind or function.__name__, function, batching)
            _check_options(handler.kind, options)
            defaults = Options(**options)
            timeout = _checked(handler, defaults, self.settings).timeout
            if batching and timeout and batching.linger_s >= timeout.total_seconds():
                raise ConfigError(
                    f"{handler.kind}: linger must be shorter than the timeout, or jobs end before they begin"
                )
            self.registry.add(handler)
            self._defaults[handler.kind] = defaults
            return JobDefinition(self, handler, defaults)

        return declare if function is None else declare(function)

    def route(self, pattern: str, queue: str) -> None:
        """Sends jobs that name no queue to this one, by their kind, or by its beginning: `app.route("gh_*", "gh")`.

        The kind itself goes before its beginnings, and a longer one before a shorter; what an operator set with
        `awa route` goes before all of them. It counts for jobs that were declared before, too.
        """
        self.registry.routes = self.registry.routes.with_route(pattern, queue)

    def cron(
        self, expression: str, *, timezone: str = "UTC", name: str | None = None, misfire: str = "one"
    ) -> Callable[[J], J]:
        """Enqueues the decorated job, without arguments, whenever the schedule fires.

        What was missed while nobody led is made up for by `misfire`: `one` job, none (`skip`), or `all` (bounded).
        """
        check_schedule(expression, timezone, misfire)

        def declare(job: J) -> J:
            if not isinstance(job, JobDefinition):
                raise ConfigError("@app.cron goes above @app.job, on the job that it enqueues")
            new = job.new()  # a job that needs arguments cannot run from a schedule
            self.registry.add_schedule(
                CronDefinition.from_job(
                    new, name=name or job.kind, expression=expression, timezone=timezone, misfire=misfire
                )
            )
            return job

        return declare

    def new(self, kind: str, args: Mapping[str, Any] | None = None, **options: Any) -> NewJob:
        """A job by its name, checked against the handler where this app has one."""
        _check_options(kind, options)
        defaults = self._defaults.get(kind, Options())
        handler = self.registry.get(kind)
        payload = dict(args or {}) if handler is None else _fitting(handler, dict(args or {}))
        default_queue = self.registry.routes.queue_for(kind)
        return replace(defaults, **options).new_job(kind, payload, self.settings, default_queue)

    async def enqueue(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
        *,
        connection: Connection | None = None,
        **options: Any,
    ) -> Job:
        """Enqueues a job by its name."""
        return await self.enqueue_new(self.new(kind, args, **options), connection)

    async def enqueue_many(self, jobs: Iterable[NewJob], *, connection: Connection | None = None) -> Sequence[Job]:
        """Enqueues all of them, or none, in one transaction; answers in their order."""
        return await self.enqueue_all(list(jobs), connection)

    async def work(
        self,
        queues: Mapping[str, int] | Sequence[str] = ("default",),
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        maintenance: bool = True,
        until_idle: bool = False,
        name: WorkerName | None = None,
    ) -> None:
        """Runs a worker inside this process until it is cancelled, or, with `until_idle`, until nothing is due."""
        worker = self.worker(queues, concurrency=concurrency, maintenance=maintenance, name=name)
        async with self:  # handlers may enqueue
            await worker.run(until_idle=until_idle)

    def worker(
        self,
        queues: Mapping[str, int] | Sequence[str],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        maintenance: bool = True,
        metrics: Metrics | None = None,
        name: WorkerName | None = None,
    ) -> Worker:
        """A worker that is not running yet. With `maintenance`, it is a candidate for leadership too.

        `name` is how people call it; None: as AWA_WORKER_PREFIX, AWA_WORKER_VERSION and AWA_WORKER_ID say.
        """
        self._find_database()
        metrics = metrics or Metrics()
        worker_id = uuid4()
        return Worker(
            self.database,
            self.registry,
            self.settings,
            queues=queues if isinstance(queues, Mapping) else dict.fromkeys(queues, concurrency),
            concurrency=concurrency,
            metrics=metrics,
            worker_id=worker_id,
            name=name,
            services=[self.candidate(process_id=worker_id, metrics=metrics)] if maintenance else [],
        )

    def candidate(self, *, process_id: UUID | None = None, metrics: Metrics | None = None) -> Candidate:
        """A candidate for leadership that knows this app's schedules."""
        self._find_database()
        return Candidate(
            self.database,
            self.settings,
            schedules=self.registry.schedules,
            metrics=metrics or Metrics(),
            process_id=process_id or uuid4(),
        )


def _batching(size: int | None, linger: Duration | None) -> Batching | None:
    if size is None:
        if linger is not None:
            raise ConfigError("linger goes with batch: how long the first job of a batch waits for the others")
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"batch is how many jobs a call takes at the most: 1 or more, not {size!r}")
    return Batching(size=size, linger_s=(DEFAULT_LINGER if linger is None else durations.parse(linger)).total_seconds())


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    known = {option.name for option in fields(Options)}
    for name in options:
        if name not in known:
            raise ConfigError(f"{kind}: there is no option {name!r}; there are {', '.join(sorted(known))}")


def _checked(handler: Handler, options: Options, settings: Settings) -> JobSpec:
    """The spec of these options: what is wrong with them shows here, not at the first enqueue."""
    options.unique_key(handler.kind, {})
    if (key := options.key_template(handler.kind)) is not None:
        key.check(handler.signature.takes)
    return options.spec(handler.kind, settings)


def _fitting(handler: Handler, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments as JSON, whether they came as Python values or as JSON already."""
    try:
        return handler.signature.dump((), args)
    except InvalidArguments:
        handler.signature.load(args)
        return args
