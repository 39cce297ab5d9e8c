"""Ordinals, durations, errors as text, and text that PostgreSQL can store."""

from datetime import timedelta

import asyncpg
import pytest

from awa_py.text import (
    clean_text,
    count,
    describe,
    describe_chain,
    format_frames,
    ordinal,
    redact,
    relative_time,
    short_duration,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0th"),
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (10, "10th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (20, "20th"),
        (21, "21st"),
        (22, "22nd"),
        (101, "101st"),
        (111, "111th"),
        (112, "112th"),
        (113, "113th"),
        (121, "121st"),
        (1011, "1011th"),
    ],
)
def test_ordinal(number: int, text: str) -> None:  # P8
    assert ordinal(number) == text


def caught(raising: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise raising
        raise raising from cause
    except BaseException as error:
        return error


class TestDescribeChain:  # P8
    def test_error_without_causes(self) -> None:
        assert describe_chain(ValueError("bad")) == "ValueError: bad"

    def test_error_without_message_is_its_type(self) -> None:
        assert describe_chain(ValueError()) == "ValueError"

    def test_causes_follow_the_outermost_error(self) -> None:
        inner = caught(KeyError("x"), OSError("disk"))
        assert describe_chain(caught(ValueError("bad"), inner)) == "ValueError: bad ← KeyError: 'x' ← OSError: disk"

    def test_implicit_context_counts_as_a_cause(self) -> None:
        def handle() -> None:
            try:
                raise KeyError("x")
            except KeyError:
                raise ValueError("while handling")  # noqa: B904

        with pytest.raises(ValueError, match="while handling") as error:
            handle()
        assert describe_chain(error.value) == "ValueError: while handling ← KeyError: 'x'"

    def test_suppressed_context_is_left_out(self) -> None:
        def handle() -> None:
            try:
                raise KeyError("x")
            except KeyError:
                raise ValueError("clean") from None

        with pytest.raises(ValueError, match="clean") as error:
            handle()
        assert describe_chain(error.value) == "ValueError: clean"

    def test_cyclic_causes_end(self) -> None:
        first, second = ValueError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        assert describe_chain(first) == "ValueError: first ← KeyError: 'second'"

    def test_long_chain_is_cut_to_the_limit(self) -> None:
        error: BaseException = ValueError("x" * 50)
        for _ in range(500):
            error = caught(ValueError("x" * 50), error)
        assert len(describe_chain(error)) == 4000
        assert describe_chain(error).endswith("…")

    def test_error_with_a_broken_str_is_named(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        assert describe_chain(Mute()) == "Mute: (its message cannot be shown: __str__ raised RuntimeError)"


class TestCleanText:
    def test_plain_text_is_unchanged(self) -> None:
        assert clean_text("ünï ✓ 😀") == "ünï ✓ 😀"

    def test_nul_is_escaped(self) -> None:
        assert clean_text("a\x00b") == "a\\0b"

    def test_lone_surrogates_are_escaped(self) -> None:
        assert clean_text("a\ud800b\udfff") == "a\\ud800b\\udfff"
        clean_text("\ud800").encode()

    def test_long_text_is_cut_to_the_limit(self) -> None:
        assert clean_text("abcdef", 4) == "abc…"
        assert clean_text("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "now"), (3, "in 3s"), (-90, "90s ago"), (300, "in 5m"), (-7200, "2h ago"), (2e6, "in 23d")],
)
def test_relative_time_is_approximate(seconds: float, expected: str) -> None:
    assert relative_time(timedelta(seconds=seconds)) == expected


def test_short_duration_uses_the_largest_fitting_unit() -> None:
    assert [short_duration(timedelta(seconds=n)) for n in (0, 119, 120, 7199)] == ["0s", "119s", "2m", "119m"]


def test_count_adds_a_plural() -> None:
    assert [count(n, "job") for n in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("no\n  route"), "no route"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("see postgresql://me:hunter2@host/db"), "see postgresql://me:***@host/db"),
        (asyncpg.UndefinedTableError('relation "awa.ready" does not exist'), 'relation "awa.ready" does not exist'),
        (
            asyncpg.InvalidTextRepresentationError('invalid input syntax for type smallint: "hunter2"'),
            "invalid input syntax for type smallint",
        ),
        (
            asyncpg.NumericValueOutOfRangeError('value "hunter2" is out of range for type integer'),
            'value "…" is out of range for type integer',
        ),
        (
            asyncpg.DataError('invalid input for query argument $4: \'{"a": "hunter2"}\' (no text)'),
            "invalid input for query argument $4",
        ),
    ],
)
def test_described_error_contains_no_values(error: Exception, expected: str) -> None:
    assert describe(error) == expected


def test_described_error_omits_the_detail() -> None:
    error = asyncpg.CheckViolationError('new row violates check constraint "args_is_an_object"')
    error.detail = "Failing row contains (1, hunter2)."
    assert "hunter2" in str(error)
    assert describe(error) == 'new row violates check constraint "args_is_an_object"'


def test_formatted_frames_omit_the_message() -> None:
    text = "hunter2"
    try:
        raise ValueError(text)
    except ValueError as error:
        frames = format_frames(error)
    assert "raise ValueError(text)" in frames
    assert text not in frames


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ('APP "http://u:p@h": no "//u:p@h"', 'APP "http://u:***@h": no "//u:***@h"'),
        ("postgresql://u:a@b/c?d#e@h,i/d is wrong", "postgresql://u:***@h,i/d is wrong"),
        ("postgresql://u@h/d?password=p&x=y", "postgresql://u@h/d?password=***&x=y"),
        ("PGPASSWORD=p host=h", "PGPASSWORD=*** host=h"),
        ("postgresql://user:password@host/db", "postgresql://user:password@host/db"),  # a placeholder
        ("http://127.0.0.1:9464/metrics, me@example.com", "http://127.0.0.1:9464/metrics, me@example.com"),
    ],
)
def test_redacted_text_has_no_passwords(text: str, shown: str) -> None:
    assert redact(text) == shown
