"""The end of a stream, however long it is."""

import asyncio

CHUNK_BYTES = 64 * 1024


class Tail:
    """Reads a stream to its end, and keeps its last bytes."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._end = b""

    async def follow(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(CHUNK_BYTES):
            self._end = (self._end + chunk)[-self._kept_bytes :]

    @property
    def text(self) -> str:
        return _text(self._end)

    def last(self, size: int) -> str:
        """The last so many bytes but for the blanks at the end, for a sentence."""
        return _text(self._end.rstrip()[-size:])


def _text(raw: bytes) -> str:
    """What PostgreSQL can store, whatever the bytes."""
    return raw.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
