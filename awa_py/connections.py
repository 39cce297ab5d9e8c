"""Type aliases for asyncpg's classes, which are generic only in its stubs."""

from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

Record: TypeAlias = asyncpg.Record
if TYPE_CHECKING:
    DedicatedConnection: TypeAlias = asyncpg.Connection[Record]
    Connection: TypeAlias = DedicatedConnection | PoolConnectionProxy[Record]
    Pool: TypeAlias = asyncpg.Pool[Record]
else:
    DedicatedConnection = asyncpg.Connection
    Connection = DedicatedConnection | PoolConnectionProxy
    Pool = asyncpg.Pool
