"""Rules for the names of kinds, queues, schedules, rate limits and tags, and for keys.

`schema/0001_baseline/00_values.sql` has the same rules for names that SQL writes.
"""

from awa_py.errors import InvalidJob, InvalidStep
from awa_py.text import is_plain

MAX_NAME_CHARACTERS = 200
MAX_KEY_CHARACTERS = 500
MAX_NODE_CHARACTERS = 150  # of a flow: names of its signals contain it
MAX_UNIQUE_KEY_CHARACTERS = 1000


def check_kind(kind: str) -> str:
    """Return `kind` if it is a valid name of a kind, or raise InvalidJob."""
    return _check_name(kind, "kind", forbidden="")


def check_queue(queue: str) -> str:
    """Return `queue` if it is a valid name of a queue, or raise InvalidJob."""
    return _check_name(queue, "queue", forbidden=",")


def check_concurrency_key(kind: str, key: str) -> str:
    """Return `key` if it is a valid concurrency key, or raise InvalidJob. `kind` is for the message."""
    if not isinstance(key, str):
        raise InvalidJob(f"{kind}: concurrency_key is a string, not {type(key).__name__}")
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not is_plain(key):
        raise InvalidJob(f"{kind}: a concurrency key has 1 to {MAX_KEY_CHARACTERS} characters, no control characters")
    return key


def check_schedule_name(name: str) -> str:
    """Return `name` if it is a valid name of a schedule, or raise InvalidJob."""
    return _check_name(name, "schedule", forbidden="")


def check_rate_limit_name(name: str) -> str:
    """Return `name` if it is a valid name of a rate limit, or raise InvalidJob."""
    return _check_name(name, "rate limit", forbidden="")


def check_tag(kind: str, tag: str) -> str:
    """Return `tag` if it is valid, or raise InvalidJob. `kind` is for the message."""
    if not isinstance(tag, str) or not tag.strip(" ") or len(tag) > MAX_NAME_CHARACTERS or not is_plain(tag):
        raise InvalidJob(
            f"{kind}: a tag is a string of 1 to {MAX_NAME_CHARACTERS} characters without control characters"
        )
    return tag


def check_checkpoint_name(name: str) -> str:
    """Return `name` if it can name a step, a timer or a signal of a durable job, or raise InvalidStep."""
    try:
        return _check_name(name, "step", forbidden="")
    except InvalidJob as error:
        raise InvalidStep(str(error)) from None


def check_signal(name: str, key: str | None) -> None:
    """Raise InvalidJob if a signal cannot have this name, or this key of its sender."""
    _check_name(name, "signal", forbidden="")
    if key is not None and not _is_key(key):
        raise InvalidJob(
            f'signal "{name}": its key has 1 to {MAX_UNIQUE_KEY_CHARACTERS} characters, no control characters'
        )


def check_flow_node(name: str) -> str:
    """Return `name` if it can name a job of a flow, or raise InvalidJob."""
    if isinstance(name, str) and len(name) > MAX_NODE_CHARACTERS:
        raise InvalidJob(f'flow: "{name[:40]}…": the name of a job has at most {MAX_NODE_CHARACTERS} characters')
    return _check_name(name, "job", forbidden="")


def check_unique_key(key: str) -> str:
    """Return `key` if it is a valid unique key, or raise InvalidJob."""
    if not _is_key(key):
        raise InvalidJob(f"a unique key has 1 to {MAX_UNIQUE_KEY_CHARACTERS} characters, no control characters")
    return key


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 1 <= len(key) <= MAX_UNIQUE_KEY_CHARACTERS and is_plain(key)


def _check_name(name: object, role: str, *, forbidden: str) -> str:
    if not isinstance(name, str):
        raise InvalidJob(f"{role} {name!r}: a {role}'s name is a string")
    if not name.strip(" "):
        raise InvalidJob(f"a {role}'s name cannot be empty")
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidJob(f'{role} "{name[:40]}…": a {role}\'s name has at most {MAX_NAME_CHARACTERS} characters')
    if not is_plain(name):
        raise InvalidJob(f"{role} {name!r}: a {role}'s name cannot contain control characters")
    if "," in forbidden and "," in name:
        raise InvalidJob(f'{role} "{name}": a {role}\'s name cannot contain a comma')
    return name
