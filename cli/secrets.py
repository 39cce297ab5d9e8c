"""Keep passwords that were typed into the wrong place out of what `awa` prints.

This is done once, around the root command, because the text of a usage error is typer's, and quotes what was typed.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from awa_py.text import redact

# Of click, or of typer's own copy of it in newer versions.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
_ClickException: type[Any] = typer.BadParameter.__mro__[2]

_URL_OPTIONS = ("--database-url", "--direct-url")
_DATABASE_URL = re.compile(r"(-\w|--[\w-]+=|-*)\s*postgres(ql)?://", re.IGNORECASE)


class RedactingGroup(TyperGroup):
    """A root command that refuses misplaced URLs of databases, and whose errors quote no passwords."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _redacted_errors():
            refuse_misplaced_urls(args)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _redacted_errors():
            return super().invoke(ctx)


def refuse_misplaced_urls(words: Sequence[str]) -> None:
    """Raise a usage error if a database's URL with a password is the value of another option or argument.

    As a queue's or a kind's name it would be accepted, stored and printed.
    """
    for previous, word in zip(("awa", *words), words, strict=False):
        is_expected = previous in _URL_OPTIONS or word.startswith(tuple(f"{option}=" for option in _URL_OPTIONS))
        if not is_expected and _DATABASE_URL.match(word) and _has_password(word):
            raise typer.BadParameter(
                f"the URL of a database is not expected after {previous!r}: use --database-url or AWA_DATABASE_URL"
            )


@contextmanager
def _redacted_errors() -> Iterator[None]:
    try:
        yield
    except _ClickException as error:
        text = error.format_message()
        if redact(text) == text:
            raise
        if isinstance(error, _UsageError):
            raise _UsageError(redact(text), ctx=error.ctx) from None
        raise _ClickException(redact(text)) from None


def _has_password(word: str) -> bool:
    joined = "".join(word.split())  # a password may contain a space
    return redact(joined) != joined
