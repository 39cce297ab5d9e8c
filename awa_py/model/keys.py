"""Templates of keys: concurrency keys with names of arguments (`customer:{customer_id}`), and unique keys.

`awa.complete_jobs` computes the same keys in SQL (`schema/0001_baseline/16_kinds.sql`), from the JSON that is stored.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from awa_py.errors import InvalidJob
from awa_py.model.job import State, UniqueKey
from awa_py.model.names import check_concurrency_key

_NAME = re.compile(r"\{([^\W\d]\w*)\}")  # other braces are ordinary characters

_decode = json.JSONDecoder().raw_decode  # json.loads takes several times as long, and every job pays for it


class KeyTemplate:
    """The template of the concurrency keys of a kind's jobs."""

    __slots__ = ("_kind", "names", "parts", "text")

    def __init__(self, kind: str, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidJob(f"{kind}: concurrency_key is a string, not {type(text).__name__}")
        self._kind = kind
        self.text = text
        self.parts = _NAME.split(text)  # literal text and argument names, alternating
        self.names = tuple(self.parts[1::2])
        if not self.names:
            check_concurrency_key(kind, text)

    def check(self, accepts: Callable[[str], bool]) -> None:
        """Raise InvalidJob if the template names an argument that the handler does not accept."""
        for name in self.names:
            if not accepts(name):
                raise self._no_argument(name)

    def fill(self, args_json: str) -> str:
        """Return the key of a job with these arguments. Strings are inserted as they are, other values as JSON."""
        if not self.names:
            return self.text
        args = _decode(args_json)[0]
        parts = self.parts.copy()
        for n in range(1, len(parts), 2):
            try:
                value = args[parts[n]]
            except KeyError:
                raise self._no_argument(parts[n]) from None
            parts[n] = value if type(value) is str else canonical_json(value)
        return check_concurrency_key(self._kind, "".join(parts))

    def _no_argument(self, name: str) -> InvalidJob:
        return InvalidJob(f'{self._kind}: concurrency_key "{self.text}" names "{name}", which the job does not have')


class UniqueTemplate:
    """The template of the unique keys of a kind's jobs: a fixed key, or a digest of the arguments named in `by`.

    `by` is None for all arguments. `optional` are the names that a job may leave out.
    """

    __slots__ = ("_kind", "_optional", "by", "key", "period", "states")

    def __init__(
        self,
        kind: str,
        *,
        by: Sequence[str] | None,
        key: str | None,
        period: timedelta | None,
        states: tuple[State, ...],
        optional: Collection[str] = (),
    ) -> None:
        if isinstance(by, str):
            raise InvalidJob(f"{kind}: unique by takes a list of argument names, not one string")
        self._kind = kind
        self._optional = optional
        self.by = None if by is None else tuple(by)
        self.key = key
        self.period = period
        self.states = states
        UniqueKey(key=kind if key is None else key, period=period, states=states)  # checks them

    def check(self, accepts: Callable[[str], bool]) -> None:
        """Raise InvalidJob if `by` names an argument that the handler does not accept."""
        for name in self.by or ():
            if not accepts(name):
                raise self._no_argument(name)

    def fill(self, args_json: str) -> UniqueKey:
        """Return the unique key of a job with these arguments."""
        key = self.key if self.key is not None else self._digest(_decode(args_json)[0])
        return UniqueKey(key=key, period=self.period, states=self.states)

    def _digest(self, args: dict[str, Any]) -> str:
        if self.by is not None:
            for name in self.by:
                # A misspelt name would be missing in all jobs, and make them all duplicates of the first.
                if name not in args and name not in self._optional:
                    raise self._no_argument(name)
            args = {name: args.get(name) for name in self.by}
        return f"{self._kind}:{hashlib.sha256(canonical_json(args).encode()).hexdigest()[:32]}"

    def _no_argument(self, name: str) -> InvalidJob:
        return InvalidJob(f'{self._kind}: unique by names "{name}", which the job does not have')


def canonical_json(value: Any) -> str:
    """Return the text of decoded JSON that all equal values share: sorted keys, no spaces, and 1 for 1.0.

    `awa.canonical_json` returns the same in SQL, where a number that Python wrote as 1e+16 has become
    10000000000000000.
    """
    match value:
        case str():
            return encode_basestring(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{Decimal(repr(value)).normalize():f}" if value else "0"  # not -0
        case list():
            return f"[{','.join(map(canonical_json, value))}]"
        case _:
            members = (f"{encode_basestring(name)}:{canonical_json(value[name])}" for name in sorted(value))
            return f"{{{','.join(members)}}}"
