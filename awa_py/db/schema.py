"""The schema's name, and how it gets into the SQL."""

import re
from dataclasses import dataclass

from awa_py.errors import ConfigError
from awa_py.settings import DEFAULT_SCHEMA


@dataclass(frozen=True, slots=True)
class Schema:
    """The PostgreSQL schema of one installation. SQL is written for `awa`; `qualify` inserts the real name."""

    name: str = DEFAULT_SCHEMA

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 50 or re.search(r"[\x00-\x1f'\"\\%$.]", self.name):
            raise ConfigError(
                f"schema {self.name!r}: a schema's name has 1 to 50 bytes, without quotes, dots, %, $ or backslashes"
            )
        if self.name.startswith("pg_"):
            raise ConfigError(f"schema {self.name!r}: names that begin with pg_ are reserved for PostgreSQL")

    def qualify(self, sql: str) -> str:
        """Replace `awa.table` by `"name".table`, `'awa'` by `'name'`, and `"awa_role"` by `"name_role"`."""
        named = re.sub(r'"awa(_\w+)?"', lambda match: f'"{self.name}{match[1] or ""}"', sql)
        named = re.sub(r"\bawa\.(?=\w|%)", lambda _: f'"{self.name}".', named)
        return named.replace("'awa'", f"'{self.name}'")

    @property
    def channel(self) -> str:
        """Return the channel of notifications to the workers."""
        return self.name

    @property
    def leader_channel(self) -> str:
        """Return the channel of notifications to the leader and the candidates."""
        return f"{self.name}:leader"
