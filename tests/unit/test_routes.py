"""Routes in code: the queue of jobs that name none, by kind."""  # F4

import json
from typing import Any

import pytest

from awa_py import App, ConfigError, InvalidJob
from awa_py.model.routes import Routes, check_pattern

ROUTES = {"gh_*": "gh", "gh_hook_*": "hooks", "gh_hook_ping": "quick", "mail": "email"}


@pytest.mark.parametrize(
    ("kind", "queue"),
    [
        ("gh_issue", "gh"),
        ("gh_", "gh"),
        ("gh_hook_push", "hooks"),  # the longest prefix
        ("gh_hook_ping", "quick"),  # the kind itself
        ("gh", "default"),
        ("mail", "email"),
        ("mailer", "default"),
        ("other", "default"),
    ],
)
def test_best_matching_pattern_wins(kind: str, queue: str) -> None:
    assert Routes(ROUTES).queue_for(kind) == queue
    assert Routes(dict(reversed(ROUTES.items()))).queue_for(kind) == queue


def test_star_matches_every_kind() -> None:
    assert Routes({"*": "all", "a*": "some"}).queue_for("b") == "all"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "a route's pattern cannot be empty"),
        (" ", "a route's pattern cannot be empty"),
        (None, "route None: a route's pattern is a string"),
        ("g*h", 'route "g*h": a star is allowed only at the end of a pattern'),
        ("*_x", "a star is allowed only at the end"),
        ("gh_**", "a star is allowed only at the end"),
        ("x" * 201, "a pattern has at most 200 characters"),
        ("a\tb", "a pattern cannot contain control characters"),
    ],
)
def test_invalid_pattern_is_rejected(pattern: Any, message: str) -> None:
    for make in (lambda: check_pattern(pattern), lambda: App().route(pattern, "q"), lambda: App(routes={pattern: "q"})):
        with pytest.raises(ConfigError) as error:
            make()
        assert message in str(error.value)


def test_invalid_queue_is_rejected() -> None:
    with pytest.raises(InvalidJob, match="cannot contain a comma"):
        App().route("gh_*", "a,b")


def test_conflicting_routes_are_rejected() -> None:
    app = App(routes={"gh_*": "gh"})
    app.route("gh_*", "gh")
    with pytest.raises(ConfigError, match=r'route "gh_\*" is declared twice: to "gh" and to "other"'):
        app.route("gh_*", "other")


def test_queue_of_a_job_wins_over_routes_declared_before_or_after() -> None:
    app = App()

    @app.cron("@daily")
    @app.job
    async def gh_sync() -> None: ...

    @app.cron("@daily")
    @app.job(queue="own")
    async def gh_own() -> None: ...

    assert gh_sync.new().spec.default_queue == "default"
    app.route("gh_*", "gh")
    assert (gh_sync.new().queue, gh_sync.new().spec.default_queue) == (None, "gh")
    assert gh_sync.options(unique=True).new().spec.default_queue == "gh"
    assert app.new("gh_else").spec.default_queue == "gh"
    assert gh_sync.new().spec is gh_sync.new().spec
    assert (gh_own.new().queue, gh_sync.options(queue="own").new().queue) == ("own", "own")
    options = {schedule.name: schedule.options for schedule in app.registry.schedules}
    assert options["gh_sync"]["default_queue"] == "gh"
    assert options["gh_own"]["queue"] == "own"
    assert "default_queue" not in options["gh_own"]


def test_json_has_the_queue_or_the_default_queue() -> None:
    app = App(routes={"gh_*": "gh"})
    for kind, queue, default_queue in (
        ("gh_x", None, "gh"),
        ("gh_x", "q", None),
        ("work", None, None),
        ("work", "default", None),
    ):
        written = json.loads(app.new(kind, queue=queue).to_json())
        assert (written.get("queue"), written.get("default_queue")) == (queue, default_queue)
