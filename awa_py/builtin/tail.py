"""Keep the end of a stream of any length."""

import asyncio

CHUNK_BYTES = 64 * 1024


class Tail:
    """Reads a stream to its end and keeps its last bytes."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._end = b""

    async def read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(CHUNK_BYTES):
            self._end = (self._end + chunk)[-self._kept_bytes :]

    @property
    def text(self) -> str:
        return _text(self._end)

    def last(self, size: int) -> str:
        """Return the last `size` bytes as text, without trailing whitespace, for error messages."""
        return _text(self._end.rstrip()[-size:])


def _text(raw: bytes) -> str:
    """Decode the bytes to text that PostgreSQL can store."""
    return raw.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
