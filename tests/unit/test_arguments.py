"""Arguments of handlers: checked against annotations, converted to JSON and back."""

import dataclasses
import enum
import functools
import json
import math
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from awa_py.arguments.json_text import dumps
from awa_py.arguments.signature import Signature
from awa_py.errors import InvalidArguments, InvalidJob

if TYPE_CHECKING:
    from elsewhere import Missing  # type: ignore[import-not-found]

MIB = 2**20
T = TypeVar("T")
UserId = NewType("UserId", int)


class Context:
    """A stand-in for awa.Context."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Corner(enum.Enum):
    NORTH_WEST = (0, 0)
    SOUTH_EAST = (1, 1)


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0
    at: datetime | None = None


@dataclass(frozen=True)
class Point3(Point):
    z: int = 0


@dataclass
class Node:
    name: str
    children: "list[Node]" = field(default_factory=list)
    size: int = field(init=False, default=0)


@dataclass
class Picky:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n must not be negative")


@dataclass
class Seeded:
    n: int
    seed: dataclasses.InitVar[int]


@dataclass
class Box(Generic[T]):
    held: T


class Pair(NamedTuple):
    left: int
    right: datetime | None = None


class Movie(TypedDict):
    title: str
    released: date
    stars: NotRequired[int]


class Money:
    """A class without a JSON form."""


def signature_of(hint: Any) -> Signature:
    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": hint}
    return Signature.from_function(handler, context_type=Context)


def round_trip(hint: Any, value: object) -> Any:
    signature = signature_of(hint)
    text = dumps(signature.dump((value,), {}), what="handler", limit=MIB)
    return signature.load(json.loads(text))["value"]


def error_of(call: Callable[[], object], expected: type[InvalidJob] = InvalidArguments) -> str:
    with pytest.raises(InvalidJob) as caught:
        call()
    assert type(caught.value) is expected
    return str(caught.value)


NOW = datetime(2026, 7, 1, 9, 30, tzinfo=UTC)

GOOD: list[tuple[Any, object, object]] = [
    (str, "hé", "hé"),
    (str, "", ""),
    (str, Mode.FAST, "fast"),
    (int, 3, 3),
    (int, 2**80, 2**80),
    (int, Level.HIGH, 2),
    (float, 1.5, 1.5),
    (float, 3, 3),
    (bool, True, True),
    (None, None, None),
    (Any, {"a": [1, None, "x", {"b": True}]}, {"a": [1, None, "x", {"b": True}]}),
    (Any, (1, 2), [1, 2]),
    (object, "x", "x"),
    (Optional[str], None, None),  # noqa: UP045
    (Union[int, str], "x", "x"),  # noqa: UP007
    (int | str, 3, 3),
    (float | int, 3, 3),
    (str | None, "x", "x"),
    (float | None, 3, 3),
    (Literal["a", 1, None], "a", "a"),
    (Literal["a", 1, None], 1, 1),
    (Literal["a", 1, None], None, None),
    (Literal[Colour.RED, "blue"], Colour.RED, "red"),
    (list, [1, "x"], [1, "x"]),
    (list[int], [1, 2], [1, 2]),
    (list[datetime], [NOW], ["2026-07-01T09:30:00+00:00"]),
    (list[list[UserId]], [[UserId(1)], []], [[1], []]),
    (Sequence[int], [1], [1]),
    (tuple, (1, "x"), [1, "x"]),
    (typing.Tuple, (1, "x"), [1, "x"]),  # noqa: UP006
    (tuple[()], (), []),
    (tuple[int, *tuple[str, ...]], (1, "x", "y"), [1, "x", "y"]),
    (tuple[int, ...], (1, 2, 3), [1, 2, 3]),
    (tuple[int, date], (1, date(2026, 7, 1)), [1, "2026-07-01"]),
    (set[str], {"b", "a", "c"}, ["a", "b", "c"]),
    (frozenset[int], frozenset({3, 1}), [1, 3]),
    (AbstractSet[int], frozenset({1}), [1]),
    (dict, {"a": 1}, {"a": 1}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[Any, Any], {"a": 1}, {"a": 1}),
    (Mapping[str, list[Decimal]], {"a": [Decimal("1.10")]}, {"a": ["1.10"]}),
    (dict[int, str], {1: "x", -2: "y"}, {"1": "x", "-2": "y"}),
    (dict[Level, int], {Level.LOW: 5}, {"1": 5}),
    (dict[date, int], {date(2026, 7, 1): 5}, {"2026-07-01": 5}),
    (datetime, NOW, "2026-07-01T09:30:00+00:00"),
    (datetime, datetime(2026, 7, 1, 9, 0, 0, 1, timezone(timedelta(hours=-3))), "2026-07-01T09:00:00.000001-03:00"),
    (date, date(2026, 7, 1), "2026-07-01"),
    (time, time(9, 30), "09:30:00"),
    (time, time(9, 30, tzinfo=UTC), "09:30:00+00:00"),
    (timedelta, timedelta(minutes=2), 120),
    (timedelta, timedelta(milliseconds=-250), -0.25),
    (timedelta, timedelta.max, "86399999999999.999999"),
    (timedelta, timedelta.min + timedelta(microseconds=1), "-86399999913599.999999"),
    (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Decimal, Decimal("0.10"), "0.10"),
    (Colour, Colour.BLUE, "blue"),
    (Level, Level.HIGH, 2),
    (Mode, Mode.FAST, "fast"),
    (Rights, Rights.READ | Rights.WRITE, 3),
    (Corner, Corner.SOUTH_EAST, "SOUTH_EAST"),
    (Path, Path("/tmp/é"), "/tmp/é"),
    (PurePosixPath, PurePosixPath("a/b"), "a/b"),
    (bytes, b"\x00\xff", "AP8="),
    (Point, Point(1, 2.5, NOW), {"x": 1, "y": 2.5, "at": "2026-07-01T09:30:00+00:00"}),
    (Node, Node("a", [Node("b")]), {"name": "a", "children": [{"name": "b", "children": []}]}),
    (Box[int], Box(3), {"held": 3}),
    (Pair, Pair(1, NOW), {"left": 1, "right": "2026-07-01T09:30:00+00:00"}),
    (
        list[Movie],
        [{"title": "Up", "released": date(2009, 5, 29)}],
        [{"title": "Up", "released": "2009-05-29"}],
    ),
    (
        Movie,
        {"title": "Up", "released": date(2009, 5, 29), "stars": 5},
        {"title": "Up", "released": "2009-05-29", "stars": 5},
    ),
    (UserId, UserId(5), 5),
    (Annotated[datetime, "when"], NOW, "2026-07-01T09:30:00+00:00"),
    (Annotated[int, []], 5, 5),
    (T, [1], [1]),
    (Money, {"amount": 3}, {"amount": 3}),
    (date | datetime, NOW, "2026-07-01T09:30:00+00:00"),
    (datetime | date, date(2026, 7, 1), "2026-07-01"),
    (datetime | str, "2026-07-01T09:30:00+00:00", "2026-07-01T09:30:00+00:00"),
    (Point | Point3 | None, Point3(1, z=4), {"x": 1, "y": 0.0, "at": None, "z": 4}),
    (Point | list[int], [1], [1]),
]


@pytest.mark.parametrize(
    ("hint", "value", "stored"), GOOD, ids=[f"{n}-{hint}"[:60] for n, (hint, _, _) in enumerate(GOOD)]
)
def test_value_survives_the_round_trip_through_json(hint: Any, value: object, stored: object) -> None:
    assert json.loads(json.dumps(signature_of(hint).dump((value,), {}))) == {"value": stored}
    back = round_trip(hint, value)
    assert back == (list(value) if isinstance(value, tuple) and hint is Any else value)


@pytest.mark.parametrize(
    ("hint", "value", "kind"),
    [
        (float, 3, float),
        (float | None, 3, float),
        (int | float, 3, int),
        (str, Mode.FAST, str),
        (int, Level.LOW, int),
        (bool | int, True, bool),
        (Mode, Mode.FAST, Mode),
        (Sequence[int], (1, 2), list),
        (Sequence[int], range(3), list),
        (Iterable[int], {1, 2}, list),
        (Collection[int], (1, 2), list),
        (AbstractSet[int], {1}, frozenset),
        (Pair, Pair(1), Pair),
        (tuple[int, int], (1, 2), tuple),
        (Literal[1, 2], 1, int),
        (Literal[True], True, bool),
    ],
)
def test_handler_gets_the_annotated_type(hint: Any, value: object, kind: type) -> None:
    assert type(round_trip(hint, value)) is kind


BAD: list[tuple[Any, object, str]] = [
    (str, 3, 'argument "value" must be str, not int'),
    (str, None, 'argument "value" must be str, not None'),
    (str, b"x", 'argument "value" must be str, not bytes'),
    (int, "3", 'argument "value" must be int, not str'),
    (int, True, 'argument "value" must be int, not bool'),
    (int, 3.0, 'argument "value" must be int, not float'),
    (float, True, 'argument "value" must be float, not bool'),
    (float, "3", 'argument "value" must be float, not str'),
    (bool, 1, 'argument "value" must be bool, not int'),
    (None, 0, 'argument "value" must be None, not int'),
    (int | None, "3", 'argument "value" must be int or None, not str'),
    (int | str | None, 1.5, 'argument "value" must be int, str or None, not float'),
    (Literal["a", "b"], "c", 'argument "value" must be "a" or "b", but this str is not valid'),
    (Literal[1], True, 'argument "value" must be 1, but this bool is not valid'),
    (Literal["a"], [], 'argument "value" must be "a", but this list is not valid'),
    (list[int], "12", 'argument "value" must be list, not str'),
    (list[int], [1, 2, 3, "x"], "arguments.value[3] must be int, not str"),
    (Sequence[str], "abc", 'argument "value" must be Sequence, not str'),
    (Iterable[int], {1: 2}, 'argument "value" must be Iterable, not dict'),
    (tuple[int, str], (1, "a", 2), 'argument "value" must have 2 items, not 3'),
    (tuple[()], (1,), 'argument "value" must have 0 items, not 1'),
    (tuple[int, str], (1, 2), "arguments.value[1] must be str, not int"),
    (set[int], [1], 'argument "value" must be set, not list'),
    (dict[str, int], {"a b": "x"}, "arguments.value[…] must be int, not str"),
    (dict[str, int], {1: 1}, 'argument "value" has a key that is not str'),
    (dict[int, int], {True: 1}, 'argument "value" has a key that is not int'),
    (dict[int | str, int], {1: 1}, 'argument "value" has a key that is not int or str'),
    (dict[str, dict[str, int]], {"a": {"b": None}}, "arguments.value.a.b must be int, not None"),
    (Any, {"a": [{2: 3}]}, "arguments.value.a[0] has a key of type int: without an annotation, keys are strings"),
    (
        datetime,
        datetime(2026, 7, 1),
        'argument "value" must be an aware datetime, not a naive one: give it a timezone',
    ),
    (
        datetime | None,
        datetime(2026, 7, 1),
        'argument "value" must be an aware datetime, not a naive one: give it a timezone',
    ),
    (datetime, "2026-07-01", 'argument "value" must be datetime, not str'),
    (date, NOW, 'argument "value" must be date, not datetime'),
    (
        time,
        time(9, tzinfo=ZoneInfo("Pacific/Auckland")),
        'argument "value" must be a time without a timezone that depends on the date',
    ),
    (timedelta, 3, 'argument "value" must be timedelta, not int'),
    (UUID, "x", 'argument "value" must be UUID, not str'),
    (Decimal, 1.5, 'argument "value" must be Decimal, not float'),
    (Colour, "red", 'argument "value" must be Colour, not str'),
    (Path, "/tmp", f'argument "value" must be {Path.__name__}, not str'),
    (bytes, "x", 'argument "value" must be bytes, not str'),
    (Point, {"x": 1}, 'argument "value" must be Point, not dict'),
    (Point, Point3(1), 'argument "value" must be Point, not Point3'),
    (Point, Point("1"), "arguments.value.x must be int, not str"),  # type: ignore[arg-type]
    (list[Point], [Point(1), Point(1, at=3)], "arguments.value[1].at must be datetime or None, not int"),  # type: ignore[arg-type]
    (Pair, (1, None), 'argument "value" must be Pair, not tuple'),
    (Movie, {"title": "Up"}, 'argument "value" is missing "released"'),
    (Movie, {"title": "Up", "released": date.min, "star": 1}, 'argument "value" has an unexpected "star"'),
    (
        str | datetime,
        NOW,
        'argument "value" is datetime, but would be read back as str: annotate it as datetime alone',
    ),
    (
        int | timedelta,
        timedelta(seconds=5),
        'argument "value" is timedelta, but would be read back as int: annotate it as timedelta alone',
    ),
    (
        int | Level,
        Level.LOW,
        'argument "value" is Level, but would be read back as int: annotate it as Level alone',
    ),
    (
        list[int] | set[int],
        {1},
        'argument "value" is set, but would be read back as list: annotate it as set alone',
    ),
]


@pytest.mark.parametrize(
    ("hint", "value", "problem"), BAD, ids=[f"{n}-{hint}"[:60] for n, (hint, _, _) in enumerate(BAD)]
)
def test_enqueue_rejects_value_that_does_not_fit_its_annotation(hint: Any, value: object, problem: str) -> None:
    signature = signature_of(hint)
    assert error_of(lambda: signature.dump((value,), {})) == f"handler: {problem}"


@pytest.mark.parametrize(
    ("hint", "stored", "value"),
    [
        (float, 3, 3.0),
        (Decimal, 1.1, Decimal("1.1")),
        (Decimal, 7, Decimal(7)),
        (datetime, "2026-07-01T09:30:00Z", NOW),
        (timedelta, 1.5, timedelta(seconds=1.5)),
        (Point, {"x": 1}, Point(1)),
        (Node, {"name": "a"}, Node("a")),
        (Pair, {"left": 1}, Pair(1)),
        (set[int], [1, 1], {1}),
        (Any, None, None),
    ],
)
def test_load_accepts_json_from_other_sources(hint: Any, stored: object, value: object) -> None:
    back = signature_of(hint).load({"value": stored})["value"]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("hint", "stored", "problem"),
    [
        (str, 3, 'argument "value" must be str, not int'),
        (int, "3", 'argument "value" must be int, not str'),
        (int, True, 'argument "value" must be int, not bool'),
        (int, 3.0, 'argument "value" must be int, not float'),
        (float, True, 'argument "value" must be float, not bool'),
        (float, 10**400, 'argument "value" must be float, but this int is not valid'),
        (bool, 0, 'argument "value" must be bool, not int'),
        (int | None, "3", 'argument "value" must be int or None, not str'),
        (datetime, "yesterday", 'argument "value" must be datetime, but this str is not valid'),
        (datetime, 3, 'argument "value" must be datetime, not int'),
        (
            datetime,
            "2026-07-01T09:30:00",
            'argument "value" must be an aware datetime, not a naive one: give it a timezone',
        ),
        (datetime | None, "yesterday", 'argument "value" must be datetime, but this str is not valid'),
        (date, "2026-13-01", 'argument "value" must be date, but this str is not valid'),
        (time, "25:00", 'argument "value" must be time, but this str is not valid'),
        (timedelta, "soon", 'argument "value" must be timedelta, but this str is not valid'),
        (timedelta, 1e300, 'argument "value" must be timedelta, but this float is not valid'),
        (timedelta, True, 'argument "value" must be timedelta, not bool'),
        (UUID, "x", 'argument "value" must be UUID, but this str is not valid'),
        (Decimal, "x", 'argument "value" must be Decimal, but this str is not valid'),
        (Colour, "green", 'argument "value" must be Colour, but this str is not valid'),
        (Colour, [], 'argument "value" must be Colour, but this list is not valid'),
        (Level, True, 'argument "value" must be Level, but this bool is not valid'),
        (Corner, "EAST", 'argument "value" must be Corner, but this str is not valid'),
        (bytes, "é", 'argument "value" must be bytes, but this str is not valid'),
        (bytes, "AP8!=", 'argument "value" must be bytes, but this str is not valid'),
        (bytes, "A", 'argument "value" must be bytes, but this str is not valid'),
        (Literal["a", "b"], "c", 'argument "value" must be "a" or "b", but this str is not valid'),
        (Literal[1], True, 'argument "value" must be 1, but this bool is not valid'),
        (list[int], {"0": 1}, 'argument "value" must be list, not dict'),
        (list[int], [1, None], "arguments.value[1] must be int, not None"),
        (set[Any], [[]], 'argument "value" must be set, but this list is not valid'),
        (tuple[int, int], [1], 'argument "value" must have 2 items, not 1'),
        (tuple[int, int], "ab", 'argument "value" must be tuple, not str'),
        (dict[int, str], {"x": "y"}, 'argument "value" has a key that is not int'),
        (dict[str, str], [], 'argument "value" must be dict, not list'),
        (Point, {}, 'argument "value" is missing "x"'),
        (Point, {"x": 1, "w": 2}, 'argument "value" has an unexpected "w"'),
        (Point, {"x": 1, "at": "noon"}, "arguments.value.at must be datetime, but this str is not valid"),
        (Point, [1], 'argument "value" must be Point, not list'),
        (Node, {"name": "a", "children": [{"name": 1}]}, "arguments.value.children[0].name must be str, not int"),
        (Picky, {"n": -1}, 'argument "value" cannot become Picky: it raised ValueError'),
        (Movie, {"title": "Up"}, 'argument "value" is missing "released"'),
        (
            Movie,
            {"title": "Up", "released": "2009"},
            "arguments.value.released must be date, but this str is not valid",
        ),
        (Point | Pair, {"z": 1}, 'argument "value" must be Point or Pair, not dict'),
        (str, ["x" * 100], 'argument "value" must be str, not list'),
        (UUID, "x" * 100, 'argument "value" must be UUID, but this str is not valid'),
    ],
)
def test_run_rejects_json_that_does_not_fit_the_annotation(hint: Any, stored: object, problem: str) -> None:
    signature = signature_of(hint)
    assert error_of(lambda: signature.load({"value": stored})) == f"handler: {problem}"


def send_email(ctx: Context, to: str, subject: str, retries: int = 3, *, urgent: bool = False) -> None: ...


SEND = Signature.from_function(send_email, context_type=Context)


def test_dump_binds_a_call_without_the_context() -> None:
    assert SEND.context_parameter == "ctx"
    assert SEND.dump(("a@example.com",), {"subject": "hi", "urgent": True}) == {
        "to": "a@example.com",
        "subject": "hi",
        "urgent": True,
    }


def test_dump_leaves_defaults_to_the_handler() -> None:
    assert SEND.dump(("a", "b"), {}) == {"to": "a", "subject": "b"}
    assert SEND.load({"to": "a", "subject": "b"}) == {"to": "a", "subject": "b"}


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {"to": "a"}, 'missing argument "subject"'),
        ((), {}, 'missing argument "to"'),
        ((), {"to": "a", "sbject": "b"}, 'unexpected argument "sbject" (did you mean "subject"?)'),
        (("a", "b"), {"colour": 1}, 'unexpected argument "colour"'),
        (("a", "b"), {"to": "c"}, 'argument "to" was given twice'),
        (("a", "b", 1, True), {}, "takes 3 positional arguments, not 4"),
        ((3, "b"), {}, 'argument "to" must be str, not int'),
        (("a", "b"), {"ctx": None}, 'argument "ctx" is the context, which awa passes itself'),
        ((), {1: "a"}, 'unexpected argument "1"'),
    ],
)
def test_dump_rejects_call_that_does_not_bind(
    args: tuple[object, ...], kwargs: dict[str, object], problem: str
) -> None:
    assert error_of(lambda: SEND.dump(args, kwargs)) == f"send_email: {problem}"


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"to": "a"}, 'missing argument "subject"'),
        ({"to": "a", "sbject": "b"}, 'unexpected argument "sbject" (did you mean "subject"?)'),
        ({"to": 1, "subject": "b"}, 'argument "to" must be str, not int'),
        ({"to": "a", "subject": "b", "ctx": 1}, 'argument "ctx" is the context, which awa passes itself'),
        ([], "the arguments must be a JSON object, not list"),
        ("x", "the arguments must be a JSON object, not str"),
        (None, "the arguments must be a JSON object, not null"),
    ],
)
def test_load_rejects_payload_that_does_not_bind(payload: object, problem: str) -> None:
    assert error_of(lambda: SEND.load(payload)) == f"send_email: {problem}"


def test_load_does_not_change_the_payload() -> None:
    payload: dict[str, object] = {"to": "a", "subject": "b"}
    loaded = SEND.load(payload)
    loaded["to"] = "c"
    assert payload == {"to": "a", "subject": "b"}


def test_keyword_parameters_accept_other_names_but_not_the_context() -> None:
    def handler(ctx: Context, to: str, **rest: int) -> None: ...

    signature = Signature.from_function(handler, context_type=Context)
    assert signature.dump(("a",), {"n": 1, "rest": 2}) == {"to": "a", "n": 1, "rest": 2}
    assert signature.load({"to": "a", "n": 1}) == {"to": "a", "n": 1}
    assert error_of(lambda: signature.dump(("a",), {"n": "x"})) == 'handler: argument "n" must be int, not str'
    assert "is the context" in error_of(lambda: signature.load({"to": "a", "ctx": 1}))
    assert "unexpected" in error_of(lambda: signature.dump(("a",), {1: 1}))  # type: ignore[dict-item]
    assert error_of(lambda: signature.dump((), {"n": 1})) == 'handler: missing argument "to"'


def test_signature_rejects_unsupported_parameters() -> None:
    def variable(*parts: str) -> None: ...
    def positional(to: str, /) -> None: ...
    def twice(one: Context, two: Context) -> None: ...
    def seeded(value: Seeded) -> None: ...

    def error_for(function: Callable[..., object]) -> str:
        return error_of(lambda: Signature.from_function(function, context_type=Context), InvalidJob)

    assert error_for(variable) == "variable: *parts is not supported: a job's arguments are stored by name"
    assert error_for(positional) == (
        "positional: to is positional-only, which is not supported: a job's arguments are stored by name"
    )
    assert error_for(twice) == 'twice: both "one" and "two" are annotated as the context'
    assert error_for(seeded) == (
        'seeded: argument "value": Seeded cannot be rebuilt from JSON: '
        'its constructor needs "seed", which is not a field'
    )


@pytest.mark.parametrize(
    "hint",
    [
        Context,
        "Context",
        Context | None,
        Annotated[Context, "x"],
        "elsewhere.Context",
        "elsewhere.Context | None",
    ],
    ids=str,
)
def test_context_is_found_by_its_annotation(hint: Any) -> None:
    def handler(n: Any, anything: Any) -> None: ...

    handler.__annotations__ = {"n": int, "anything": hint}
    signature = Signature.from_function(handler, context_type=Context)
    assert signature.context_parameter == "anything"
    assert signature.dump((1,), {}) == {"n": 1}


@pytest.mark.parametrize("hint", [list[Context], dict[str, Context], "MyContext", int, Any], ids=str)
def test_other_annotations_are_not_the_context(hint: Any) -> None:
    assert signature_of(hint).context_parameter is None


def test_unresolvable_annotation_is_treated_as_any_and_does_not_affect_others() -> None:
    def handler(value: "Missing", n: "int", when: "datetime", deep: "list[Missing]") -> None: ...

    signature = Signature.from_function(handler, context_type=Context)
    assert signature.dump(([1], 2, NOW, [3]), {})["when"] == NOW.isoformat()
    assert error_of(lambda: signature.dump(([1], "2", NOW, []), {})) == 'handler: argument "n" must be int, not str'
    assert signature.load({"value": "x", "n": 1, "when": NOW.isoformat(), "deep": []})["when"] == NOW


def test_unresolvable_field_does_not_affect_other_fields() -> None:
    @dataclass
    class Half:
        known: "datetime"
        unknown: "Missing"

    signature = signature_of(Half)
    assert signature.load({"value": {"known": NOW.isoformat(), "unknown": [1]}}) == {"value": Half(NOW, [1])}


@pytest.mark.parametrize("hint", [5, "5 +", [], {}, ..., len, Callable[[], int], type[int], "lambda: 0"], ids=str)
def test_annotation_that_is_not_a_type_is_ignored(hint: Any) -> None:
    assert round_trip(hint, {"a": 1}) == {"a": 1}


def import_source(monkeypatch: pytest.MonkeyPatch, source: str) -> Any:
    module = types.ModuleType("made_for_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(textwrap.dedent(source), "made_for_test.py", "exec", dont_inherit=True), vars(module))
    return module


def test_string_annotations_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_source(
        monkeypatch,
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from datetime import datetime
        from typing import NotRequired, TypedDict
        from test_arguments import Context

        class Options(TypedDict):
            when: datetime
            stars: NotRequired[int]

        class Loose(TypedDict, total=False):
            when: datetime

        @dataclass
        class Tree:
            when: datetime
            branches: list[Tree]

        def handler(ctx: Context, options: Options, loose: Loose, tree: Tree | None = None) -> None: ...
        """.replace("test_arguments", __name__),
    )
    signature = Signature.from_function(module.handler, context_type=Context)
    tree = module.Tree(NOW, [module.Tree(NOW, [])])
    given = {"options": {"when": NOW}, "loose": {}, "tree": tree}
    assert signature.context_parameter == "ctx"
    assert signature.load(json.loads(dumps(signature.dump((), given), what="x", limit=MIB))) == given
    message = error_of(lambda: signature.load({"options": {}, "loose": {}}))
    assert message == 'handler: argument "options" is missing "when"'


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12")
def test_type_aliases_and_type_parameters_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_source(
        monkeypatch,
        """
        from datetime import datetime
        type When = datetime
        type Tree = datetime | list[Tree]
        type Pair[T] = tuple[T, datetime]
        type Broken = nowhere.Thing
        def handler[T](when: When, tree: Tree, pair: Pair[int], broken: Broken, any: T) -> None: ...
        """,
    )
    signature = Signature.from_function(module.handler, context_type=Context)
    given = {"when": NOW, "tree": [NOW, [NOW, []]], "pair": (1, NOW), "broken": [1], "any": {"a": 1}}
    assert signature.load(json.loads(dumps(signature.dump((), given), what="x", limit=MIB))) == given
    message = error_of(lambda: signature.dump((), given | {"tree": [3]}))
    assert message == "handler: arguments.tree[0] must be datetime or list, not int"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs the lazy annotations of Python 3.14")
def test_unresolvable_lazy_annotation_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_source(
        monkeypatch,
        """
        from dataclasses import dataclass
        from datetime import datetime
        @dataclass
        class Half:
            when: datetime
            value: Missing
        def handler(ctx: elsewhere.Context, when: datetime, value: Missing, half: Half) -> None: ...
        """,
    )
    signature = Signature.from_function(module.handler, context_type=Context)
    assert signature.context_parameter == "ctx"
    given = {"when": NOW, "value": [1], "half": module.Half(NOW, [2])}
    assert signature.load(json.loads(dumps(signature.dump((), given), what="x", limit=MIB))) == given


def test_default_of_none_allows_none() -> None:
    def handler(to: str = None, n: "Missing" = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    signature = Signature.from_function(handler, context_type=Context)
    assert signature.dump((None, None), {}) == {"to": None, "n": None}
    assert error_of(lambda: signature.dump((3,), {})) == 'handler: argument "to" must be str or None, not int'


def test_methods_partials_wrappers_and_callable_objects_can_be_handlers() -> None:
    class Mailer:
        def send(self, to: str, n: int) -> None: ...

        def __call__(self, n: int) -> None: ...

    @functools.wraps(send_email)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    def of(function: Callable[..., object]) -> Signature:
        return Signature.from_function(function, context_type=Context)

    assert "send: " in error_of(lambda: of(Mailer().send).dump(("a", "b"), {}))
    assert 'Mailer: argument "n" must be int' in error_of(lambda: of(Mailer()).dump(("a",), {}))
    assert of(functools.partial(Mailer().send, "a")).dump((1,), {}) == {"n": 1}
    assert 'argument "n" must be int' in error_of(lambda: of(functools.partial(Mailer().send, "a")).load({"n": ""}))
    assert of(wrapped).context_parameter == "ctx"


def test_deeply_nested_value_is_rejected() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert error_of(lambda: signature_of(Any).dump((deep,), {})) == 'handler: argument "value" is nested too deeply'
    message = error_of(lambda: dumps({"value": deep}, what="handler", limit=MIB), InvalidJob)
    assert message == "handler: arguments: nested too deeply for JSON"


def test_json_is_compact_and_keeps_unicode() -> None:
    assert dumps({"a": [1, "é🎈", None]}, what="x", limit=MIB) == '{"a":[1,"é🎈",null]}'


CONTAINS_ITSELF: list[Any] = []
CONTAINS_ITSELF.append({"a": CONTAINS_ITSELF})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"x": math.nan}, 'argument "x": NaN is not JSON'),
        ({"x": [1, -math.inf]}, "arguments.x[1]: -Infinity is not JSON"),
        ({"x": "a\0b"}, r'argument "x": \u0000 cannot be stored in PostgreSQL'),
        ({"x": {"a\0": 1}}, r'argument "x": in a key, \u0000 cannot be stored in PostgreSQL'),
        ({"x": "\\u0000 and \0"}, r'argument "x": \u0000 cannot be stored in PostgreSQL'),
        ({"x": ["\ud800"]}, r"arguments.x[0]: the lone surrogate \ud800 cannot be stored in PostgreSQL"),
        ({"x": {"\udfff": 1}}, r'argument "x": in a key, the lone surrogate \udfff cannot be stored in PostgreSQL'),
        (
            {"items": [1, 2, 3, {"when": {1}}]},
            "arguments.items[3].when: a set is not JSON-serializable",
        ),
        ({"x": {"a b": object()}}, "arguments.x[…]: an object is not JSON-serializable"),
        ({"x": {(1, 2): 3}}, 'argument "x": in a key, a tuple is not JSON-serializable'),
        ({"x": {b"k": 3}}, 'argument "x": in a key, a bytes is not JSON-serializable'),
        ({"x": CONTAINS_ITSELF}, "arguments.x[0].a: it contains itself"),
        ({"x": 10**5000}, 'argument "x": the integer has too many digits'),
        ({1, 2}, "arguments: a set is not JSON-serializable"),
    ],
)
def test_dumps_names_the_part_that_cannot_be_stored(value: object, problem: str) -> None:
    message = error_of(lambda: dumps(value, what="send_email", limit=MIB), InvalidJob)
    assert message == f"send_email: {problem}"


def test_dumps_names_results_as_results() -> None:
    message = error_of(lambda: dumps({"x": math.inf}, what="resize", limit=MIB, noun="result"), InvalidJob)
    assert message == "resize: result.x: Infinity is not JSON"


@pytest.mark.parametrize("value", [r"\u0000", r"\\u0000", "u0000", "\\", "\x01\x1f\x7f", "\uffff", "\u2028"])
def test_backslashes_and_control_characters_can_be_stored(value: str) -> None:
    assert json.loads(dumps({value: value}, what="x", limit=MIB)) == {value: value}


@pytest.mark.parametrize(
    ("characters", "limit", "problem"),
    [
        ("x" * (MIB * 14 // 10), MIB, "1.4 MiB of arguments, the limit is 1 MiB"),
        ("x" * MIB, MIB, f"{MIB + 2} bytes of arguments, the limit is {MIB} bytes"),
        ("é" * 1024, 2048, "2050 bytes of arguments, the limit is 2048 bytes"),
        ("x" * 99, 100, "101 bytes of arguments, the limit is 100 bytes"),
        ("x" * 4094, 100, "4 KiB of arguments, the limit is 100 bytes"),
    ],
)
def test_dumps_rejects_json_over_the_limit(characters: str, limit: int, problem: str) -> None:
    assert error_of(lambda: dumps(characters, what="resize", limit=limit), InvalidJob) == f"resize: {problem}"


def test_limit_is_inclusive_and_in_bytes() -> None:
    assert dumps("é" * 10, what="x", limit=22) == f'"{"é" * 10}"'
    error_of(lambda: dumps("é" * 10, what="x", limit=21), InvalidJob)


scalars = {
    str: st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False),
    bytes: st.binary(),
    Colour: st.sampled_from(Colour),
    Corner: st.sampled_from(Corner),
    PurePosixPath: st.text("ab./", min_size=1).map(PurePosixPath),
}
documents = st.recursive(
    st.none() | scalars[bool] | scalars[int] | scalars[float] | scalars[str],
    lambda inner: st.lists(inner) | st.dictionaries(scalars[str], inner),
    max_leaves=10,
)


@st.composite
def annotated_values(draw: st.DrawFn) -> tuple[Any, object]:
    hint: Any = draw(st.sampled_from([*scalars]))
    values: st.SearchStrategy[Any] = scalars[hint]
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.sampled_from(["list", "tuple", "pair", "dict", "optional", "box"]))
        if shape == "list":
            hint, values = list[hint], st.lists(values, max_size=3)
        elif shape == "tuple":
            hint, values = tuple[hint, ...], st.lists(values, max_size=3).map(tuple)
        elif shape == "pair":
            hint, values = tuple[hint, int], st.tuples(values, st.integers())
        elif shape == "dict":
            hint, values = dict[str, hint], st.dictionaries(scalars[str], values, max_size=3)
        elif shape == "optional":
            hint, values = Optional[hint], st.none() | values  # noqa: UP045
        else:
            made = dataclasses.make_dataclass("Made", [("held", hint)])
            hint, values = made, st.builds(made, values)
    return hint, draw(values)


@given(annotated_values())
@example((timedelta, timedelta(days=99_421, microseconds=1)))  # a float would have the wrong microsecond
def test_every_supported_value_survives_the_round_trip(annotated: tuple[Any, object]) -> None:
    hint, value = annotated
    assert round_trip(hint, value) == value


@given(st.frozensets(scalars[Decimal]), st.frozensets(scalars[str]))
def test_sets_survive_the_round_trip(numbers: frozenset[Decimal], texts: frozenset[str]) -> None:
    assert round_trip(frozenset[Decimal], numbers) == numbers
    assert round_trip(frozenset[str], texts) == texts


def test_equal_sets_give_equal_json() -> None:
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other]
    signature = signature_of(set[int])
    assert json.dumps(signature.dump((one,), {})) == json.dumps(signature.dump((other,), {}))


@given(documents)
def test_plain_json_survives_the_round_trip(value: object) -> None:
    assert round_trip(Any, value) == value


@given(st.sampled_from([hint for hint, _, _ in GOOD]), documents)
def test_document_is_rejected_or_loads_to_a_value_that_can_be_dumped(hint: Any, stored: object) -> None:
    signature = signature_of(hint)
    try:
        loaded = signature.load({"value": stored})
    except InvalidArguments:
        return
    assert signature.load(json.loads(dumps(signature.dump((), loaded), what="x", limit=MIB))) == loaded
