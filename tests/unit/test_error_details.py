"""What a job's errors keep of an exception."""

import json
from typing import Any

import pytest

from awa_py.error_details import MAX_PARTS, MAX_TRACEBACK_CHARACTERS, error_details


class Declined(Exception):
    class Forever(Exception):
        pass


def charge(card: str) -> None:
    raise Declined(card)


def details(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(error_details(error))
    return fields


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_exception_is_the_dotted_path_of_the_class() -> None:
    assert details(ValueError("x"))["exception"] == "builtins.ValueError"
    assert details(Declined.Forever())["exception"] == f"{__name__}.Declined.Forever"


def test_traceback_shows_the_frames_and_the_message() -> None:
    with pytest.raises(Declined) as raised:
        charge("4111")
    lines = details(raised.value)["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-3].startswith(f'  File "{__file__}", line ')
    assert lines[-3].endswith(", in charge")
    assert lines[-2:] == ["    raise Declined(card)", f"{__name__}.Declined: 4111"]


def test_traceback_shows_the_causes_first() -> None:
    error = Declined("no card")
    error.__cause__ = caught(KeyError("card"))
    text = details(caught(error))["traceback"]
    assert text.index("builtins.KeyError: 'card'") < text.index("was the direct cause of") < text.index("no card")


def test_exception_that_was_never_raised_has_no_frames() -> None:
    assert details(ValueError("x"))["traceback"] == "builtins.ValueError: x"


def test_deep_traceback_keeps_the_innermost_frames() -> None:
    def descend(depth: int) -> None:
        if depth == 0:
            charge("4111")
        descend(depth - 1)

    with pytest.raises(Declined) as raised:
        descend(400)
    text = details(raised.value)["traceback"]
    assert "  … 387 more" in text
    assert text.count("in descend") == 15
    assert text.count("in charge") == 1


def test_details_are_bounded() -> None:
    long = "x" * 1_000_000
    error = caught(ValueError(long))
    for _ in range(10):
        try:
            raise RuntimeError(long) from error
        except RuntimeError as raised:
            error = raised
    assert len(details(error)["traceback"]) <= MAX_TRACEBACK_CHARACTERS
    group = ExceptionGroup(long, [caught(ValueError(long)) for _ in range(50)])  # type: ignore[type-var]
    assert len(error_details(caught(group))) < 20_000


def test_cyclic_causes_end() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert "first" in details(first)["traceback"]


def test_parts_of_a_group_have_their_own_details() -> None:
    inner = ExceptionGroup("inner", [caught(KeyError("b"))])  # type: ignore[type-var]
    group = caught(ExceptionGroup("two failed", [caught(ValueError("a")), inner]))  # type: ignore[type-var]
    shown = details(group)
    assert shown["exception"] == "builtins.ExceptionGroup"
    assert [(part["exception"], part["error"]) for part in shown["parts"]] == [
        ("builtins.ValueError", "builtins.ValueError: a"),
        ("builtins.KeyError", "builtins.KeyError: 'b'"),
    ]
    assert all("in caught" in part["traceback"] for part in shown["parts"])


def test_large_group_keeps_its_first_parts() -> None:
    group = ExceptionGroup("many", [ValueError(n) for n in range(100_000)])
    assert [part["error"][-1] for part in details(group)["parts"]] == [str(n) for n in range(MAX_PARTS)]


def test_exception_whose_class_misbehaves_can_be_recorded() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "__qualname__":
                raise SystemExit
            return super().__getattribute__(name)

    class Odd(Exception, metaclass=Meta):
        pass

    assert details(Odd())["exception"].endswith(".Odd")


def test_text_that_postgresql_cannot_store_is_replaced() -> None:
    assert details(ValueError("a\x00b\ud800"))["traceback"] == "builtins.ValueError: a\\0b\\ud800"
