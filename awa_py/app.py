"""The App: declare jobs and schedules, enqueue jobs, read and change them, and run workers."""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID, uuid4
from weakref import WeakSet

from awa_py.arguments.json_text import dumps
from awa_py.builtin.flow import FLOW, KIND, add_flow
from awa_py.client import Client
from awa_py.connections import Connection, Pool
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.definitions import JobDecorator, JobDefinition
from awa_py.durations import Duration
from awa_py.errors import AwaError, ConfigError
from awa_py.maintenance.election import Candidate
from awa_py.maintenance.one_shot import Maintenance
from awa_py.maintenance.tasks import one_shot_tasks
from awa_py.model.declarations import Declarations, check_version, source_version
from awa_py.model.flow import Flow
from awa_py.model.job import Job, NewJob
from awa_py.model.options import JobOptions, check_names, make_template
from awa_py.model.outcomes import Next
from awa_py.model.registry import CronDefinition, Registry, check_schedule
from awa_py.model.routes import Routes
from awa_py.model.worker_name import WorkerName
from awa_py.observability.history import Event
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings, schema_name
from awa_py.shared_client import SharedClient
from awa_py.store.session import Session
from awa_py.worker.worker import DEFAULT_CONCURRENCY, Worker

T = TypeVar("T")
D = TypeVar("D", bound=JobDefinition[..., Any, Callable[..., Any]])


class App:
    """Jobs, schedules, and the database that holds them. Use it inside `async with app:`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        direct_url: str | None = None,
        schema: str | None = None,
        settings: Settings | None = None,
        routes: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> None:
        """`url` and `schema` default to AWA_DATABASE_URL (or DATABASE_URL) and AWA_SCHEMA.

        Without `url`, AWA_EMBEDDED_DIR comes first: the app uses the embedded PostgreSQL in that directory while it is
        open, starts it if no other process has, and creates the schema.

        `direct_url` bypasses a pooler that `url` goes through. Both come from the same source: AWA_DIRECT_URL is
        ignored if `url` is given. `routes` are routes as in `route()`. `version` names this version of your code, e.g.
        the commit: what an older version declares does not replace what a newer one did. It defaults to
        AWA_WORKER_VERSION, else to the time when the files that define the jobs were changed.
        """
        self._shared = SharedClient(url, direct_url, Schema(schema_name(schema)))
        self.settings = settings or Settings.from_env()
        self.registry = Registry(Routes(routes))
        self._version = check_version(version)
        self._workers: WeakSet[Worker] = WeakSet()
        self._started = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {os.getpid()}"  # the last resort

    async def __aenter__(self) -> "App":
        """Open the app. Raise DatabaseUnavailable, SchemaError or NotPermitted if the database cannot be used."""
        await self._shared.open(self.settings, check=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._shared.close()

    @asynccontextmanager
    async def unchecked(self) -> AsyncIterator["App"]:
        """Open the app even if the database cannot be used yet. For a worker, which waits until it can."""
        await self._shared.open(self.settings, check=False)
        try:
            yield self
        finally:
            await self._shared.close()

    @property
    def database(self) -> Database:
        """The database. It may be unknown before the app is open."""
        return self._shared.database

    def connect_to(self, database: Database) -> None:
        """Use this database instead of the one that the app was made with."""
        self._shared.connect_to(database)

    @property
    def client(self) -> Client:
        """The client behind the methods that talk to the database."""
        return self._shared.client

    @property
    def pool(self) -> Pool:
        """The pool for your own statements. Its connections have the settings of the login; awa has another pool."""
        return self.client.user_pool

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Open a session for functions of the store: `async with app.session() as session: …`"""
        return self.client.session()

    @property
    def job(self) -> JobDecorator:
        """Decorate a function to declare a job: `@app.job`, or `@app.job(queue="email", timeout="30s")`."""
        return JobDecorator(self, {})

    def route(self, pattern: str, queue: str) -> None:
        """Send jobs without a queue to this one, by kind (`"sync"`) or by prefix (`"gh_*"`).

        An exact kind wins over a prefix, and a longer prefix over a shorter one. Routes that an operator set with
        `awa route` win over all of these. The route also applies to jobs that were declared before.
        """
        self.registry.routes = self.registry.routes.with_route(pattern, queue)

    def cron(
        self, expression: str, *, timezone: str = "UTC", name: str | None = None, misfire: str = "one"
    ) -> Callable[[D], D]:
        """Enqueue the decorated job, without arguments, whenever the schedule fires.

        `misfire` says what to do about fire times that passed without a leader: enqueue `one` job, none (`skip`), or
        `all` of them, up to a limit.
        """
        check_schedule(expression, timezone, misfire)

        def declare(job: D) -> D:
            if not isinstance(job, JobDefinition):
                raise ConfigError("@app.cron goes above @app.job, on the job that it enqueues")
            new = job.new()  # fails if the job needs arguments: a schedule has none
            self.registry.add_schedule(
                CronDefinition.from_job(
                    new, name=name or job.kind, expression=expression, timezone=timezone, misfire=misfire
                )
            )
            return job

        return declare

    def new(self, kind: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> NewJob:
        """Return a job for `enqueue_many`, by kind. The arguments are checked if this app has a handler for it."""
        check_names(kind, options)
        handler = self.registry.get(kind)
        arguments = dict(args or {})
        if handler is not None:
            arguments = handler.signature.to_json(arguments)
            options = {**handler.options, **options}
        queue = self.registry.routes.queue_for(kind)
        template = make_template(kind, options, self.settings, queue, handler.signature if handler else None)
        return template.fill(dumps(arguments, what=kind, limit=self.settings.max_args_bytes))

    async def enqueue(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
        *,
        connection: Connection | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Enqueue a job by kind. With `connection`, do so in that connection's transaction."""
        return await self.client.enqueue(self.new(kind, args, **options), connection)

    async def enqueue_many(self, jobs: Iterable[NewJob], *, connection: Connection | None = None) -> Sequence[Job]:
        """Enqueue all of the jobs or none, in one transaction. Return them in the same order."""
        return await self.client.enqueue_many(list(jobs), connection)

    async def start(
        self, flow: Flow, *, connection: Connection | None = None, **options: Unpack[JobOptions]
    ) -> Job[Any]:
        """Enqueue a flow, as one job. Its result is that of the flow, and its children are the jobs of the flow."""
        check_names(KIND, options)
        queue = self.registry.routes.queue_for(KIND)
        template = make_template(KIND, options, self.settings, queue, FLOW.signature)
        args = dumps(flow.to_args(), what="flow", limit=self.settings.max_args_bytes)
        return await self.client.enqueue(template.fill(args), connection)

    @overload
    async def get(self, job: Job[T]) -> Job[T]: ...
    @overload
    async def get(self, job: int) -> Job: ...
    async def get(self, job: Job | int) -> Job:
        """Return the job as it is now, or raise JobNotFound."""
        return await self.client.get(_id(job))

    @overload  # the result is that of the last state
    async def result(self, job: Job[Next], *, timeout: Duration | None = None) -> Any: ...
    @overload
    async def result(self, job: Job[T], *, timeout: Duration | None = None) -> T: ...
    @overload
    async def result(self, job: int, *, timeout: Duration | None = None) -> Any: ...
    async def result(self, job: Job | int, *, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return its result, decoded from JSON.

        Raise JobFailed or JobCancelled if it ended without a result, and ResultTimeout after `timeout`.
        """
        return await self.client.result(_id(job), timeout=timeout)

    async def signal(
        self,
        job: Job | int,
        name: str,
        data: object = None,
        *,
        key: str | None = None,
        connection: Connection | None = None,
    ) -> bool:
        """Send a signal to a job, which `ctx.wait_signal` returns. With `connection`, do so in its transaction.

        A signal with the same `key` as one before it is not sent again: return False. Raise JobNotFound, JobEnded, or
        TooManySignals if the job has not taken the last 1000.
        """
        return await self.client.signal(_id(job), name, data, key=key, connection=connection)

    async def cancel(self, job: Job | int, *, children: bool = True) -> bool:
        """Cancel a job; if it runs, its worker is told within about a second. Return False if it had ended.

        The unfinished children of a job are cancelled with it, and theirs, unless `children` is False.
        """
        return bool(await self.client.cancel_many([_id(job)], children=children))

    async def retry(self, job: Job | int) -> bool:
        """Make a job available: again with fresh counters if it has ended, or now if it is not due.

        Return False if it runs, if it waits for a timer, a signal or a child, or if another job holds its unique key.
        """
        return bool(await self.client.retry_many([_id(job)]))

    async def rewind(self, job: Job | int, *, to: str) -> None:
        """Forget the step `to` of a durable job and all that followed, and make the job available from there.

        Unfinished children that these steps spawned are cancelled. Raise AwaError if the job runs, and InvalidStep with
        the names of its steps if `to` is none of them.
        """
        await self.client.rewind(_id(job), to=to)

    async def delete(self, job: Job | int) -> bool:
        """Delete a job. Return False if it runs, or does not exist."""
        return bool(await self.client.delete_many([_id(job)]))

    async def history(self, job: Job | int) -> list[Event]:
        """Return what happened to a job, in order."""
        return await self.client.history(_id(job))

    async def children(self, job: Job | int) -> list[Job]:
        """Return the jobs that were enqueued with this one as their parent, in order."""
        return await self.client.children(_id(job))

    async def explain(self, job: Job | int) -> list[str]:
        """Say in sentences why a job is not running, or how it ended."""
        return await self.client.explain(_id(job))

    async def rate_limit(self, name: str, tokens: int = 1, max_wait: Duration | None = None) -> None:
        """Wait for tokens of a rate limit. This is `ctx.rate_limit` for code that has no Context."""
        await self.client.rate_limit(name, tokens, max_wait)

    async def work(
        self,
        queues: Mapping[str, int] | Sequence[str] = ("default",),
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        maintenance: bool = True,
        until_idle: bool = False,
        name: WorkerName | None = None,
    ) -> None:
        """Run a worker in this process until it is cancelled or, with `until_idle`, until no job is due."""
        async with self.unchecked():  # handlers may enqueue
            worker = self.worker(queues, concurrency=concurrency, maintenance=maintenance, name=name)
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
        """Return a worker that is not running yet. With `maintenance`, it is also a candidate for leadership.

        `name` is the worker's label. It defaults to AWA_WORKER_PREFIX, AWA_WORKER_VERSION and AWA_WORKER_ID.
        """
        add_flow(self.registry)
        database = self._shared.find_database()
        metrics = metrics or Metrics()
        worker_id = uuid4()
        candidate = self.candidate(process_id=worker_id, metrics=metrics, name=name) if maintenance else None
        worker = Worker(
            database,
            self.registry,
            self.settings,
            queues=queues if isinstance(queues, Mapping) else dict.fromkeys(queues, concurrency),
            concurrency=concurrency,
            metrics=metrics,
            worker_id=worker_id,
            name=name,
            declarations=self.declarations(name),
            services=[] if candidate is None else [candidate],
        )
        self._workers.add(worker)
        return worker

    async def take_over(self) -> int:
        """Move stale jobs of dead workers to the workers of this app that run in this process. Return how many.

        Each worker does so when it starts. It takes over as many jobs as it has free slots, of its queues and kinds,
        if a leader has watched them for the staleness. What no worker takes over, the leader rescues.
        """
        workers = [worker for worker in self._workers if worker.claims]
        if not workers:
            raise AwaError("no worker of this app runs in this process: call take_over() while app.work() runs")
        return sum([await worker.take_over() for worker in workers])

    def declarations(self, name: WorkerName | None = None) -> Declarations:
        """Return what this app declares about its kinds. `name` is that of the worker that declares it."""
        version = self._version or (name or WorkerName.from_env()).version
        if version is None:
            version = source_version(self.registry.handlers.values()) or self._started
        return Declarations.of(self.registry, self.settings, version)

    @property
    def maintenance(self) -> Maintenance:
        """The leader's tasks, to run once: `report = await app.maintenance.cleanup()`."""
        return Maintenance(one_shot_tasks(self.settings, self.registry.schedules), self.session)

    def candidate(
        self, *, process_id: UUID | None = None, metrics: Metrics | None = None, name: WorkerName | None = None
    ) -> Candidate:
        """Return a candidate for leadership that knows this app's schedules. `name` is that of its worker."""
        return Candidate(
            self._shared.find_database(),
            self.settings,
            schedules=self.declarations(name).schedules,
            metrics=metrics or Metrics(),
            process_id=process_id or uuid4(),
        )


def _id(job: Job | int) -> int:
    return job if isinstance(job, int) else job.id
