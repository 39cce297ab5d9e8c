"""What the errors of a job keep of an exception: its class, its traceback and the parts of a group.

All of it is bounded, since a job keeps 32 errors and carries them through every table.
"""

import json
import linecache
import os
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from awa_py.text import cause_of, class_name, clean_text, error_text

MAX_TRACEBACK_CHARACTERS = 4000
MAX_FRAMES = 16  # of each exception, the innermost
MAX_CAUSES = 3
MAX_MESSAGE_CHARACTERS = 200  # within the traceback: the error itself has the whole message
MAX_LINE_CHARACTERS = 200
MAX_PARTS = 8
MAX_PART_CHARACTERS = 1000  # of the traceback of one part of a group

_OWN_FOLDER = os.path.dirname(__file__) + os.sep
_CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def error_details(error: BaseException) -> str:
    """Return the fields that describe an exception, as a JSON object: `exception`, `traceback` and `parts`."""
    try:
        return json.dumps(_details(error, MAX_TRACEBACK_CHARACTERS) | _parts(error))
    except BaseException as failure:  # an exception's class is code of its own, which may raise anything
        return json.dumps({"traceback": f"(it cannot be shown: {type(failure).__name__})"})


def _parts(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, BaseExceptionGroup):
        return {}
    parts = islice(_leaves(error), MAX_PARTS)
    return {"parts": [{"error": _headline(part)} | _details(part, MAX_PART_CHARACTERS) for part in parts]}


def _leaves(group: "BaseExceptionGroup[BaseException]") -> Iterator[BaseException]:
    """Yield the exceptions of a group and of the groups in it, in order."""
    left: list[BaseException] = [group]
    while left:
        error = left.pop()
        if isinstance(error, BaseExceptionGroup):
            left += reversed(error.exceptions)
        else:
            yield error


def _details(error: BaseException, limit: int) -> dict[str, str]:
    traceback = _format_chain(error)
    if len(traceback) > limit:  # the innermost frames are at the end
        traceback = "…" + traceback[1 - limit :]
    return {
        "exception": clean_text(_class_path(error), MAX_MESSAGE_CHARACTERS),
        "traceback": clean_text(traceback, limit),
    }


def _format_chain(error: BaseException) -> str:
    """Return the tracebacks of an exception and of its causes, the exception last."""
    text = _format_one(error)
    for _ in range(MAX_CAUSES):
        cause = cause_of(error)
        if cause is None:
            break
        text = _format_one(cause) + (_CAUSE if error.__cause__ is cause else _CONTEXT) + text
        error = cause
    return text


def _format_one(error: BaseException) -> str:
    frames: list[tuple[FrameType, int]] = []
    traceback = error.__traceback__
    while traceback is not None:
        # The worker's own frames come first: they are the same for each handler.
        if frames or not traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
            frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    lines = ["Traceback (most recent call last):"] if frames else []
    if len(frames) > MAX_FRAMES:
        lines.append(f"  … {len(frames) - MAX_FRAMES} more")
    for frame, number in frames[-MAX_FRAMES:]:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {number}, in {code.co_name}')
        if source := linecache.getline(code.co_filename, number).strip():
            lines.append(f"    {source[:MAX_LINE_CHARACTERS]}")
    return "\n".join([*lines, _headline(error)])


def _headline(error: BaseException) -> str:
    message = clean_text(error_text(error), MAX_MESSAGE_CHARACTERS)
    return f"{_class_path(error)}: {message}" if message else _class_path(error)


def _class_path(error: BaseException) -> str:
    """Return the dotted path of an exception's class: `builtins.ValueError`."""
    return f"{class_name(error, '__module__')}.{class_name(error, '__qualname__')}"
