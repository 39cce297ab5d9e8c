"""Concurrency keys of new jobs."""

import copy
import json
import pickle
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from awa_py import App, BatchJob, InvalidJob, JobOptions, NewJob, Unique
from awa_py.model.keys import KeyTemplate, canonical_json


@pytest.mark.parametrize(
    ("template", "args", "key"),
    [
        ("customer:{id}", {"id": 7}, "customer:7"),
        ("customer:{id}", {"id": "7"}, "customer:7"),
        ("{a}{b}-{a}", {"a": "x", "b": "y", "c": 1}, "xy-x"),
        ("{ünï_1}", {"ünï_1": "✓"}, "✓"),
        ("{x}", {"x": True}, "true"),
        ("{x}", {"x": None}, "null"),
        ("{x}", {"x": 1.5}, "1.5"),
        ("{x}", {"x": 1.0}, "1"),
        ("{x}", {"x": {"b": 1, "a": [2, "ü"]}}, '{"a":[2,"ü"],"b":1}'),
        ("no name in it", {}, "no name in it"),
        ("{} {0} {a.b} {a!r} {a:>3} {{}} { a } {a", {"a": 1}, "{} {0} {a.b} {a!r} {a:>3} {{}} { a } {a"),
        ("{{a}}", {"a": 1}, "{1}"),
        ("{a}", {"a": "{b}", "b": 2}, "{b}"),  # values are not expanded again
    ],
)
def test_template_is_filled_from_the_arguments(template: str, args: dict[str, Any], key: str) -> None:
    assert KeyTemplate("work", template).fill(json.dumps(args)) == key


def test_error_names_the_missing_argument() -> None:
    with pytest.raises(InvalidJob, match=r'^work: concurrency_key "c:\{other\}" names "other", which the job does not'):
        KeyTemplate("work", "c:{other}").fill('{"id":1}')


@pytest.mark.parametrize("value", ["", "x" * 501, "a\x00b", "a\nb"])
def test_key_has_a_maximum_length(value: str) -> None:
    message = "work: a concurrency key has 1 to 500 characters, no control characters"
    for make in (
        lambda: NewJob(kind="work", concurrency_key=value),
        lambda: App().new("work", {"x": 1}, concurrency_key=value),
        lambda: KeyTemplate("work", "{x}").fill(json.dumps({"x": value})),
    ):
        with pytest.raises(InvalidJob, match=message):
            make()
    assert App().new("work", concurrency_key="ü" * 500).concurrency_key == "ü" * 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency_key": 7}, "work: concurrency_key is a string, not int"),
        ({"concurrency_limit": 2}, "work: concurrency_limit needs a concurrency_key"),
        ({"ordered": True}, "work: ordered needs a concurrency_key"),
        ({"concurrency_key": "k", "concurrency_limit": 0}, "work: concurrency_limit is 1 to 32767, not 0"),
        ({"concurrency_key": "k", "concurrency_limit": 32_768}, "work: concurrency_limit is 1 to 32767, not 32768"),
        ({"concurrency_key": "k", "concurrency_limit": True}, "work: concurrency_limit is 1 to 32767, not True"),
        ({"concurrency_key": "k", "concurrency_limit": "2"}, "work: concurrency_limit is 1 to 32767, not '2'"),
        ({"concurrency_key": "k", "ordered": 1}, "work: ordered is True or False, not 1"),
        (
            {"concurrency_key": "k", "ordered": True, "concurrency_limit": 2},
            "work: ordered jobs run one at a time: concurrency_limit is 1, not 2",
        ),
    ],
)
def test_invalid_key_options_are_rejected_with_the_reason(options: JobOptions, message: str) -> None:
    app = App()
    with pytest.raises(InvalidJob) as by_name:
        app.new("work", **options)
    with pytest.raises(InvalidJob) as declared:

        @app.job(**options)
        async def work() -> None: ...

    assert message in str(by_name.value)
    assert message in str(declared.value)


def test_declaration_with_an_unknown_argument_in_the_key_is_rejected() -> None:
    app = App()
    with pytest.raises(InvalidJob, match=r'send: concurrency_key "c:\{custmer\}" names "custmer", which the job'):

        @app.job(concurrency_key="c:{custmer}")
        async def send(customer: int) -> None: ...

    @app.job(concurrency_key="c:{customer}")
    async def anything(**arguments: int) -> None: ...

    assert anything.new(customer=3).concurrency_key == "c:3"


def test_jobs_of_one_definition_share_all_but_the_key() -> None:
    app = App()

    @app.job(concurrency_key="day:{day}", concurrency_limit=3)
    async def report(day: date, note: str = "") -> None: ...

    first, second = report.new(date(2026, 5, 1)), report.new(day=date(2026, 5, 2))
    assert (first.concurrency_key, second.concurrency_key) == ("day:2026-05-01", "day:2026-05-02")
    assert first.spec is second.spec
    assert (first.spec.concurrency_limit, first.spec.ordered) == (3, False)
    by_name = app.new("report", {"day": "2026-05-03"})
    assert (by_name.concurrency_key, by_name.spec) == ("day:2026-05-03", first.spec)
    unique = report.options(unique=True).new(date(2026, 5, 4))
    assert (unique.concurrency_key, unique.unique is None) == ("day:2026-05-04", False)
    other = report.options(concurrency_key="all", concurrency_limit=None, ordered=True).new(date(2026, 5, 4))
    assert (other.concurrency_key, other.spec.concurrency_limit, other.spec.ordered) == ("all", 1, True)
    with pytest.raises(InvalidJob, match='names "note"'):  # defaults are applied by the handler, not at the enqueue
        report.options(concurrency_key="{note}").new(date(2026, 5, 4))


def test_scheduled_job_cannot_have_arguments_in_its_key() -> None:
    app = App()
    with pytest.raises(InvalidJob, match='names "region"'):

        @app.cron("@daily")
        @app.job(concurrency_key="{region}")
        async def digest(region: str = "eu") -> None: ...


def test_concurrency_key_is_copied_and_written_as_json() -> None:
    job = NewJob(kind="work", concurrency_key="k", ordered=True)
    for copied in (copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
        assert copied == job
        assert type(copied) is NewJob
    written = json.loads(job.to_json())
    assert (written["concurrency_key"], written["concurrency_limit"], written["ordered"]) == ("k", 1, True)
    assert not {"concurrency_key", "concurrency_limit", "ordered"} & json.loads(NewJob(kind="work").to_json()).keys()


MISSPELT: list[JobOptions] = [{"unique": Unique(by=["pth"])}, {"concurrency_key": "k:{pth}"}]


class TestMisspeltNames:
    """An option that names an argument which no job has would treat all jobs of the kind alike."""

    @pytest.mark.parametrize("options", MISSPELT)
    def test_declaration_is_refused(self, options: JobOptions) -> None:
        app = App()
        with pytest.raises(InvalidJob, match='names "pth", which the job does not have'):

            @app.job(**options)
            async def resize(path: str) -> None: ...

        assert app.registry.get("resize") is None

    @pytest.mark.parametrize("options", MISSPELT)
    def test_options_of_an_enqueue_are_refused(self, options: JobOptions) -> None:
        app = App()

        @app.job
        async def resize(path: str) -> None: ...

        @app.job
        async def anything(**names: str) -> None: ...

        @app.job(batch=10)
        async def in_batches(jobs: list[BatchJob]) -> None: ...

        makers: list[Callable[[], NewJob]] = [
            lambda: resize.options(**options).new(path="a"),
            lambda: anything.options(**options).new(path="a"),
            lambda: in_batches.options(**options).new(path="a"),
            lambda: app.new("resize", {"path": "a"}, **options),
            lambda: app.new("unknown", {"path": "a"}, **options),
        ]
        for make in makers:
            with pytest.raises(InvalidJob, match='names "pth", which the job does not have'):
                make()

    def test_argument_with_a_default_may_be_left_out(self) -> None:
        app = App()

        @app.job(unique=Unique(by=["path", "size"]))
        async def resize(path: str, size: int | None = None, quality: int = 80) -> None: ...

        jobs = [resize.new("a"), resize.new("a", None), resize.new("a", quality=1), resize.new("a", 3), resize.new("b")]
        keys = [job.unique.key for job in jobs if job.unique]
        assert keys[0] == keys[1] == keys[2]
        assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [True, None, 1.0], "a": {}}, '{"a":{},"b":[true,null,1]}'),
        ('"\\\n\x01\x7fü', '"\\"\\\\\\n\\u0001\x7fü"'),
        (-0.0, "0"),
        (1e23, "1" + "0" * 23),
        (1.5e-7, "0.00000015"),
        (-120.50, "-120.5"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_equal_values_have_one_canonical_text(value: Any, text: str) -> None:
    assert canonical_json(value) == text
