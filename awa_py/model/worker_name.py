"""The label of a worker: `{prefix}-worker-{version}-{id}`."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from uuid import UUID

from awa_py.errors import ConfigError

MAX_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerName:
    """The parts of a worker's label. A blank part counts as unset. Without a prefix there is no label."""

    prefix: str | None = None
    version: str | None = None
    id: str | None = None  # default: four hex digits derived from the worker's UUID

    def __post_init__(self) -> None:
        for part in fields(self):
            text = (getattr(self, part.name) or "").strip()
            object.__setattr__(self, part.name, text or None)
            # Commas separate names, and stars are for patterns.
            if len(text) > MAX_CHARACTERS or re.search(r"[\s,*]", text) or not text.isprintable():
                raise ConfigError(
                    f"the worker's {part.name} {text!r}: use at most {MAX_CHARACTERS} characters, "
                    "without spaces, commas or stars"
                )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read AWA_WORKER_PREFIX, AWA_WORKER_VERSION and AWA_WORKER_ID."""
        return cls(**{part.name: environ.get(f"AWA_WORKER_{part.name.upper()}") for part in fields(cls)})

    def numbered(self, number: int) -> Self:
        """Return the name for one of several processes: append the number to a given id. Default ids differ anyway."""
        return self if self.id is None else replace(self, id=f"{self.id}-{number}")

    def label(self, worker_id: UUID) -> str | None:
        """Return the label of the worker with this id, or None if it has no label."""
        if self.prefix is None:
            return None
        return "-".join(filter(None, [self.prefix, "worker", self.version, self.id or short_id(worker_id)]))


def short_id(worker_id: UUID) -> str:
    """Return four hex digits that depend only on the worker's id."""
    return hashlib.sha256(worker_id.bytes).hexdigest()[:4]
