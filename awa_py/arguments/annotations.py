"""Read the annotations of functions and classes, even if they cannot be resolved, on Python 3.11 and later."""

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, get_origin


def hints_of(thing: Any) -> dict[str, Any]:
    """Return the resolved annotations of a function or class. One that cannot be resolved stays as it is written."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:  # an annotation is any expression, so resolving it can raise anything
        owners = reversed(thing.__mro__) if isinstance(thing, type) else (thing,)
        return {name: _resolve(hint, owner) for owner in owners for name, hint in _raw_annotations(owner).items()}


def parameters_of(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or class, whose annotations may be impossible to resolve."""
    if sys.version_info >= (3, 14):
        import annotationlib

        forward = annotationlib.Format.FORWARDREF
        return inspect.signature(function, annotation_format=forward).parameters
    return inspect.signature(function).parameters


def _raw_annotations(owner: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def _resolve(hint: Any, owner: Any) -> Any:
    def probe() -> None: ...

    probe.__annotations__ = {"hint": hint}
    try:
        is_class = isinstance(owner, type)
        names = vars(sys.modules[owner.__module__]) if is_class else inspect.unwrap(owner).__globals__
        return typing.get_type_hints(probe, globalns=names, include_extras=True)["hint"]
    except Exception:  # as above
        return hint


def alias_value(alias: Any) -> Any:
    try:
        return alias.__value__
    except Exception:  # as above: the right side of `type X = …` is evaluated here
        return Any


def is_unpacked(hint: Any) -> bool:
    return (
        isinstance(hint, typing.TypeVarTuple)
        or get_origin(hint) is typing.Unpack
        or getattr(hint, "__unpacked__", False)
    )
