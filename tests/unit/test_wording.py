"""Ordinals, chains of causes, and text that can be stored."""

import pytest

from awa_py.text import clean_text, describe_chain, ordinal


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
def test_ordinals(number: int, text: str) -> None:  # P8
    assert ordinal(number) == text


def caught(raising: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise raising
        raise raising from cause
    except BaseException as error:
        return error


class TestChain:  # P8
    def test_an_error_alone(self) -> None:
        assert describe_chain(ValueError("bad")) == "ValueError: bad"

    def test_an_error_without_words_is_its_name(self) -> None:
        assert describe_chain(ValueError()) == "ValueError"

    def test_causes_follow_outermost_first(self) -> None:
        inner = caught(KeyError("x"), OSError("disk"))
        assert describe_chain(caught(ValueError("bad"), inner)) == "ValueError: bad ← KeyError: 'x' ← OSError: disk"

    def test_what_was_being_handled_counts_too(self) -> None:
        def handle() -> None:
            try:
                raise KeyError("x")
            except KeyError:
                raise ValueError("while handling")  # noqa: B904

        with pytest.raises(ValueError, match="while handling") as error:
            handle()
        assert describe_chain(error.value) == "ValueError: while handling ← KeyError: 'x'"

    def test_a_suppressed_context_does_not(self) -> None:
        def handle() -> None:
            try:
                raise KeyError("x")
            except KeyError:
                raise ValueError("clean") from None

        with pytest.raises(ValueError, match="clean") as error:
            handle()
        assert describe_chain(error.value) == "ValueError: clean"

    def test_a_cycle_ends(self) -> None:
        first, second = ValueError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        assert describe_chain(first) == "ValueError: first ← KeyError: 'second'"

    def test_a_long_chain_is_cut(self) -> None:
        error: BaseException = ValueError("x" * 50)
        for _ in range(500):
            error = caught(ValueError("x" * 50), error)
        assert len(describe_chain(error)) == 4000
        assert describe_chain(error).endswith("…")

    def test_an_error_whose_words_fail_is_still_named(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        assert describe_chain(Mute()) == "Mute: (its text cannot be shown: RuntimeError)"


class TestClean:
    def test_plain_text_stays(self) -> None:
        assert clean_text("ünï ✓ 😀") == "ünï ✓ 😀"

    def test_nul_is_written_out(self) -> None:
        assert clean_text("a\x00b") == "a\\0b"

    def test_lone_surrogates_are_written_out(self) -> None:
        assert clean_text("a\ud800b\udfff") == "a\\ud800b\\udfff"
        clean_text("\ud800").encode()

    def test_long_text_is_cut_to_the_limit(self) -> None:
        assert clean_text("abcdef", 4) == "abc…"
        assert clean_text("abcd", 4) == "abcd"
