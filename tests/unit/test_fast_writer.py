"""The fast writer returns the same JSON as dumps, or None."""

import math
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_py.arguments.fast_writer import FastWriter
from awa_py.arguments.json_text import dumps
from awa_py.arguments.signature import Signature
from awa_py.errors import InvalidArguments, InvalidJob

LIMIT = 1_000


class Context:
    """A stand-in for awa.Context."""


def send(
    to: str, count: int = 0, share: float = 0.0, urgent: bool = False, note: str | None = None, x: Any = 1
) -> None:
    """A handler with every plain type."""


SIGNATURE = Signature.from_function(send, context_type=Context)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(
    st.fixed_dictionaries(
        {"to": TEXT},
        optional={
            "count": st.integers(),
            "share": st.floats(allow_nan=False, allow_infinity=False),
            "urgent": st.booleans(),
            "note": st.none() | TEXT,
            "x": st.none() | st.booleans() | st.integers() | TEXT,
        },
    )
)
def test_fast_writer_returns_the_same_text_as_dumps(arguments: dict[str, Any]) -> None:
    writer = FastWriter({name: step[0] for name, step in SIGNATURE._dumps.items() if step}, frozenset({"to"}))
    text = dumps(SIGNATURE.dump((), arguments), what="send", limit=10**6)
    written = writer.write(arguments, 10**6)
    assert written == text or "\\u0000" in text  # a backslash before u0000 is left to dumps
    assert SIGNATURE.write((), arguments, "send", 10**6) == text


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "arguments",
    [
        {"to": "a", "share": math.nan},
        {"to": "a", "share": math.inf},
        {"to": "a\0b"},
        {"to": "\ud800"},
        {"to": "x" * LIMIT},
        {"to": "ü" * (LIMIT // 2)},  # bytes count, not characters
        {"to": 1},
        {"to": Colour.RED},
        {"to": "a", "count": True},
        {"to": "a", "count": 10**5000},
        {"to": "a", "x": [1]},
        {"to": "a", "tp": "b"},
        {},
        {1: "a"},
    ],
)
def test_fast_writer_leaves_other_values_to_dumps(arguments: dict[Any, Any]) -> None:
    writer = FastWriter({name: step[0] for name, step in SIGNATURE._dumps.items() if step}, frozenset({"to"}))
    assert writer.write(arguments, LIMIT) is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"to": "a", "share": math.nan}, InvalidJob, 'mail: argument "share": NaN is not JSON'),
        ({"to": "a\0b"}, InvalidJob, 'mail: argument "to": \\\\u0000 cannot be stored in PostgreSQL'),
        ({"to": "\ud800"}, InvalidJob, 'mail: argument "to": the lone surrogate \\\\ud800 cannot be stored'),
        ({"to": "x" * LIMIT}, InvalidJob, "mail: 1009 bytes of arguments, the limit is 1000 bytes"),
        ({"to": 1}, InvalidArguments, 'send: argument "to" must be str, not int'),
        ({"to": "a", "cuont": 1}, InvalidArguments, 'send: unexpected argument "cuont" \\(did you mean "count"\\?\\)'),
        ({}, InvalidArguments, 'send: missing argument "to"'),
    ],
)
def test_invalid_argument_gets_the_error_of_dump(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        SIGNATURE.write((), arguments, "mail", LIMIT)


def test_positional_and_keyword_arguments_give_the_same_text() -> None:
    assert SIGNATURE.write(("a", 2), {"urgent": True}, "send", LIMIT) == '{"to":"a","count":2,"urgent":true}'
    with pytest.raises(InvalidArguments, match='argument "to" was given twice'):
        SIGNATURE.write(("a",), {"to": "b"}, "send", LIMIT)


def test_value_that_needs_conversion_is_converted() -> None:
    assert (
        SIGNATURE.write((), {"to": Colour.RED, "x": [1, {"a": None}]}, "send", LIMIT)
        == '{"to":"red","x":[1,{"a":null}]}'
    )
