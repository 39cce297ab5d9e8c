"""Convert what steps take and return: results to JSON and back, arguments to a digest, errors to records."""

import dataclasses
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, get_args, get_origin
from uuid import UUID
from weakref import WeakKeyDictionary

from awa_py.arguments.annotations import hints_of
from awa_py.arguments.builder import ConverterBuilder
from awa_py.arguments.composites import ANY
from awa_py.arguments.converters import Converter, Mismatch
from awa_py.arguments.json_text import dumps
from awa_py.errors import InvalidJob, InvalidStep, StepFailed
from awa_py.text import class_name, clean_text, describe_chain, error_text

DIGEST_BYTES = 8
MAX_ERROR_CHARACTERS = 10_000
_SCALARS = (date, time, timedelta, Decimal, UUID, PurePath)
_encode_result = functools.partial(dumps, noun="result")
# Without references to the functions: a closure may hold large objects.
_converters: WeakKeyDictionary[FunctionType, Converter] = WeakKeyDictionary()


def dump_result(name: str, value: object, converter: Converter, limit: int) -> str:
    """Return a step's result as JSON, or raise InvalidStep if it cannot be recorded."""
    what = f'step "{name}"'
    try:
        return _encode_result(converter.dump(value), what=what, limit=limit)
    except Mismatch as error:
        raise InvalidStep(f"{what}: result: {error}") from None
    except InvalidJob as error:
        raise InvalidStep(str(error)) from None
    except Exception as error:  # e.g. it contains itself, or is of a class whose own code raises something
        raise InvalidStep(f"{what}: result: it cannot be converted to JSON: {describe_chain(error)}") from None


def load_result(name: str, text: str | None, converter: Converter) -> Any:
    """Return the value of a recorded result, or raise InvalidStep if it does not fit the annotation."""
    if text is None:
        return None
    try:
        return converter.load(json.loads(text))
    except (Mismatch, ValueError, RecursionError) as error:
        raise InvalidStep(f'step "{name}": the recorded result cannot be read: {error}') from None


def result_converter(function: Callable[..., Any]) -> Converter:
    """Return the converter for the results of a function, by its annotation; of a class: for its instances."""
    plain: Any = function
    if isinstance(plain, FunctionType) and (known := _converters.get(plain)) is not None:
        return known
    while isinstance(plain, functools.partial):
        plain = plain.func
    if isinstance(plain, type):
        return _converter(plain)
    if not isinstance(plain, FunctionType | MethodType | BuiltinFunctionType):
        plain = getattr(plain, "__wrapped__", type(plain).__call__)
    plain = inspect.unwrap(getattr(plain, "__func__", plain))
    if not isinstance(plain, FunctionType):
        return ANY
    converter = _converters.get(plain)
    if converter is None:
        converter = _converters[plain] = _converter(hints_of(plain).get("return", Any))
    return converter


def _converter(hint: Any) -> Converter:
    if get_origin(hint) in (Awaitable, Coroutine):  # a plain function that returns what a coroutine function would
        hint = get_args(hint)[-1]
    try:
        return ConverterBuilder().build(hint)
    except (TypeError, NameError, AttributeError, InvalidJob):
        return ANY


@functools.lru_cache(maxsize=1024)
def type_converter(hint: Any) -> Converter:
    """Return the converter for an annotation."""
    return ConverterBuilder().build(hint)


def digest_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return 64 bits that tell apart calls with other arguments. What has no JSON form counts only by its class."""
    if not args and not kwargs:
        return None
    try:
        text = _encode_arguments([args, kwargs])
    except (TypeError, ValueError, AttributeError, RecursionError):  # e.g. it contains itself, or keys of several types
        return None
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest(), signed=True
    )


def _opaque(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, _SCALARS):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(item, default=_opaque, sort_keys=True) for item in value)
    if isinstance(value, bytes):
        return value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return class_name(value)


_encode_arguments = json.JSONEncoder(default=_opaque, sort_keys=True).encode


def dump_error(error: Exception, limit: int) -> str:
    """Return what is recorded of an error that a handler caught. Without its arguments, if they are no JSON."""
    record: dict[str, Any] = {
        "module": class_name(error, "__module__"),
        "class": class_name(error, "__qualname__"),
        "text": clean_text(error_text(error), MAX_ERROR_CHARACTERS),
    }
    try:
        # Of its built-in class, which has the arguments of that class's constructor, e.g. the file name of OSError.
        _, args, *rest = _builtin_class(type(error)).__reduce__(error)
        state = rest[0] if rest and rest[0] else {}
        kept = {name: value for name, value in state.items() if _is_json(value)}
        text = json.dumps(record | {"args": args, "state": kept})
        return text if _is_json(args) and len(text) <= limit else json.dumps(record)
    except Exception:  # an exception is code of its own, which may raise anything
        return json.dumps(record)


def load_error(text: str) -> Exception:
    """Return the recorded error: of its class, if this process knows it, made without calling its constructor."""
    try:
        record = json.loads(text)
        if "args" in record:
            found: Any = sys.modules.get(record["module"])
            for part in record["class"].split("."):
                found = getattr(found, part, None)
            if isinstance(found, type) and issubclass(found, Exception):
                error = found.__new__(found, *record["args"])
                _builtin_class(found).__init__(error, *record["args"])
                error.__setstate__(record["state"])
                return error
        return StepFailed(f"{record['class']}: {record['text']}")
    except Exception:  # the record was edited, or the class does not allow it
        return StepFailed(clean_text(text, MAX_ERROR_CHARACTERS))


def _builtin_class(error_class: type) -> Any:
    return next(each for each in error_class.__mro__ if each.__module__ == "builtins")


def _is_json(value: object) -> bool:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return "\\u0000" not in text
