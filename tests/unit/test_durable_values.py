"""Results, arguments and errors of steps as they are recorded, and the names of calls."""

import functools
import gc
import json
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from awa_py.arguments.composites import ANY
from awa_py.errors import ChildFailed, InvalidStep, StepFailed, StepTimeout
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.recorder import Recorder
from awa_py.worker.durable.values import digest_of, dump_error, dump_result, load_error, load_result, result_converter

LIMIT = 1000


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: Decimal = Decimal(1)


def point() -> Point: ...  # type: ignore[empty-body]
async def async_point() -> Point: ...  # type: ignore[empty-body]
def point_later() -> Awaitable[Point]: ...  # type: ignore[empty-body]
def point_coroutine() -> Coroutine[Any, Any, Point]: ...  # type: ignore[empty-body]


class Source:
    def point(self) -> Point: ...  # type: ignore[empty-body]
    async def __call__(self) -> Point: ...  # type: ignore[empty-body]
    @classmethod
    def make(cls) -> Point: ...  # type: ignore[empty-body]
    @staticmethod
    def static() -> Point: ...  # type: ignore[empty-body]


@functools.wraps(point)
def decorated(*args: Any) -> Any: ...


class TestConverters:
    @pytest.mark.parametrize(
        "function",
        [
            point,
            async_point,
            point_later,
            point_coroutine,
            functools.partial(point),
            functools.partial(functools.partial(async_point)),
            Source().point,
            Source(),
            Source.make,
            Source.static,
            decorated,
            Point,
        ],
    )
    def test_result_is_converted_by_the_annotation(self, function: Callable[..., Any]) -> None:
        converter = result_converter(function)
        text = dump_result("a", Point(1, Decimal("2.5")), converter, LIMIT)
        assert load_result("a", text, converter) == Point(1, Decimal("2.5"))

    @pytest.mark.parametrize("function", [lambda: 1, len, print, functools.partial(print), "".join])
    def test_result_without_annotation_is_json(self, function: Callable[..., Any]) -> None:
        assert result_converter(function) is ANY

    def test_annotation_that_cannot_be_resolved_counts_as_none(self) -> None:
        def function() -> "Unknown":  # type: ignore[name-defined]  # noqa: F821
            ...

        assert dump_result("a", {"b": 1}, result_converter(function), LIMIT) == '{"b":1}'

    def test_functions_are_not_kept_in_memory(self) -> None:
        class Large: ...

        def make() -> tuple[Callable[[], int], weakref.ref[Large]]:
            large = Large()

            def function() -> int:
                return id(large)

            return function, weakref.ref(large)

        function, large = make()
        result_converter(function)
        result_converter(functools.partial(function))
        del function
        gc.collect()
        assert large() is None

    def test_error_of_a_conversion_is_an_invalid_step(self) -> None:
        class Broken:
            @property  # type: ignore[misc]
            def __class__(self) -> type:
                raise KeyError("broken")

        with pytest.raises(InvalidStep, match='step "a": result: it cannot be converted to JSON: KeyError'):
            dump_result("a", Broken(), ANY, LIMIT)


class TestDigests:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((1,), (2,)),
            (("1",), (1,)),
            (([1, 2],), ([2, 1],)),
            ((Color.RED,), (Color.BLUE,)),
            ((Point(1),), (Point(2),)),
            ((Decimal("1.0"),), (Decimal("1.5"),)),
            ((UUID(int=1),), (UUID(int=2),)),
            ((datetime(2026, 1, 1, tzinfo=UTC),), (datetime(2026, 1, 2, tzinfo=UTC),)),
            ((Path("a"),), (Path("b"),)),
            ((b"a",), (b"b",)),
            (({1, 2},), ({1, 3},)),
            (({"a": 1},), ({"a": 2},)),
            ((object(),), ({},)),
        ],
    )
    def test_other_arguments_have_another_digest(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
        assert digest_of(one, {}) != digest_of(other, {})
        assert digest_of((), {"a": one}) != digest_of((), {"a": other})

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (({"a": 1, "b": 2},), ({"b": 2, "a": 1},)),
            (({"x", "y", "z"},), ({"z", "y", "x"},)),
            ((object(),), (object(),)),
            (({object()},), ({object()},)),
            ((Point(1),), (Point(1),)),
            (((1, 2),), ([1, 2],)),
        ],
    )
    def test_equal_arguments_have_the_same_digest(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
        """Also objects whose text has their address, which is another one in each process."""
        digest = digest_of(one, {})
        assert digest is not None
        assert digest == digest_of(other, {})
        assert -(2**63) <= digest < 2**63

    @pytest.mark.parametrize("arguments", [(), ({1: 1, "a": 2},), ({(1, 2): 3},)])
    def test_arguments_that_cannot_be_compared_have_no_digest(self, arguments: tuple[Any, ...]) -> None:
        assert digest_of(arguments, {}) is None

    def test_argument_that_contains_itself_has_no_digest(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        assert digest_of((endless,), {}) is None


class Declined(Exception):
    def __init__(self, code: int, *, card: str) -> None:
        super().__init__(f"declined: {code}")
        self.code = code
        self.card = card
        self.response = object()  # no JSON


class NoFile(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "no such file", path)
        self.path = path


class Slotted(Exception):
    __slots__ = ("more",)


class Nested:
    class Inner(Exception): ...


@dataclass
class Broken(Exception):
    values: list[int] = field(default_factory=list)

    def __reduce__(self) -> Any:
        raise RuntimeError("not that way")

    def __str__(self) -> str:
        raise RuntimeError("nor that")


def through_record(error: Exception, limit: int = 10_000) -> Exception:
    return load_error(dump_error(error, limit))


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            ValueError("x", 1, None),
            KeyError("x"),
            Declined(5, card="visa"),
            FileNotFoundError(2, "no such file", "/a"),
            OSError("plain"),
            NoFile("/a"),
            ImportError("x", name="y"),
            StepTimeout("late"),
            ChildFailed(7, "send", "no"),
            Slotted("x"),
            Nested.Inner("x"),
            UnicodeEncodeError("ascii", "ä", 0, 1, "no"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_error_keeps_its_class_arguments_text_and_attributes(self, error: Exception) -> None:
        found = through_record(error)
        assert (type(found), found.args, str(found)) == (type(error), error.args, str(error))
        for name in ("errno", "filename", "strerror", "name", "code", "card", "path", "kind", "job_id", "encoding"):
            assert getattr(found, name, None) == getattr(error, name, None)

    def test_notes_are_kept(self) -> None:
        error = ValueError("x")
        error.add_note("more")
        assert through_record(error).__notes__ == ["more"]

    @pytest.mark.parametrize(
        "error", [ValueError(object()), ExceptionGroup("x", [ValueError()]), ValueError("\0"), ValueError(float("nan"))]
    )
    def test_error_whose_arguments_are_no_json_becomes_step_failed(self, error: Exception) -> None:
        found = through_record(error)
        assert isinstance(found, StepFailed)
        assert str(found).startswith(type(error).__name__)

    def test_error_of_an_unknown_class_becomes_step_failed(self) -> None:
        text = dump_error(Declined(5, card="visa"), LIMIT).replace("Declined", "Gone")
        found = load_error(text)
        assert (type(found), str(found)) == (StepFailed, "Gone: declined: 5")

    def test_large_arguments_are_not_recorded(self) -> None:
        text = dump_error(ValueError("x" * 100_000), 50_000)
        assert len(text) < 20_000
        assert isinstance(load_error(text), StepFailed)

    def test_error_whose_own_code_fails_can_be_recorded(self) -> None:
        assert through_record(Broken([1])) == Broken([1])

    @pytest.mark.parametrize("text", ["{}", "[]", "7", '{"class": 1, "module": [], "args": {}, "text": 0}', "null"])
    def test_edited_record_becomes_step_failed(self, text: str) -> None:
        assert isinstance(load_error(text), StepFailed)

    @pytest.mark.parametrize("name", ["object", "SystemExit", "print", "type"])
    def test_only_exceptions_are_made(self, name: str) -> None:
        record = {"module": "builtins", "class": name, "text": "x", "args": [], "state": {}}
        assert str(load_error(json.dumps(record))) == f"{name}: x"


@pytest.fixture
def memory() -> Memory:
    job = cast(ClaimedJob, type("Job", (), {"id": 1, "lease": 1})())
    return Memory(job, cast(Recorder, None), max_checkpoints=10, on_lease_lost=lambda: None)


class TestNames:
    def test_calls_of_a_name_are_numbered(self, memory: Memory) -> None:
        assert [memory.take_name("a") for _ in range(3)] == ["a", "a#2", "a#3"]
        assert [memory.number(name) for name in ("a", "a#2", "a#3")] == [1, 2, 3]

    def test_name_that_was_returned_is_taken_again(self, memory: Memory) -> None:
        names = [memory.take_name("a") for _ in range(3)]
        memory.return_name("a", names[0])
        assert [memory.take_name("a") for _ in range(2)] == ["a", "a#4"]

    def test_two_calls_never_have_the_same_name(self, memory: Memory) -> None:
        names = [memory.take_name(name) for name in ("a", "a#2", "a", "a", "a#2", "a[1]", "a")]
        assert len(set(names)) == len(names)

    def test_number_tells_the_order_of_the_calls(self, memory: Memory) -> None:
        first = memory.take_name("a")
        memory.return_name("a", first)
        keyed, later = memory.take_name("a[1]"), memory.take_name("a")
        assert memory.number(keyed) < memory.number(later)
