"""Convert values that have no annotation: by their own class."""

from awa_py.arguments.builder import ConverterBuilder
from awa_py.arguments.composites import ANY
from awa_py.arguments.converters import Mismatch
from awa_py.arguments.json_text import dumps
from awa_py.errors import InvalidJob

_JSON = (dict, list, tuple, str, int, float, bool, type(None))


def dump_untyped(value: object, *, what: str, noun: str, limit: int) -> str:
    """Return JSON of a value of JSON or of a class that arguments may have, or raise InvalidJob."""
    try:
        converter = ANY if isinstance(value, _JSON) else ConverterBuilder().build(type(value))
        return dumps(converter.dump(value), what=what, limit=limit, noun=noun)
    except (Mismatch, TypeError) as error:
        raise InvalidJob(f"{what}: {noun}: {error}") from None
