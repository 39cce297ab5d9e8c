"""The signature of a handler: checks arguments, converts them to JSON for an enqueue, and back for a run."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ForwardRef, NoReturn, Union, get_args, get_origin

from awa_py.arguments.annotations import hints_of, parameters_of
from awa_py.arguments.builder import ConverterBuilder
from awa_py.arguments.composites import object_schema, optional
from awa_py.arguments.converters import JSON, Convert, Converter, Mismatch
from awa_py.arguments.fast_writer import FastWriter
from awa_py.arguments.json_text import dumps, location
from awa_py.errors import InvalidArguments, InvalidJob

_Step = tuple[frozenset[type], Convert]


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Checks and converts the arguments of a handler."""

    handler: str
    context_parameter: str | None
    _positional: tuple[str, ...]
    _required: tuple[str, ...]
    _required_names: frozenset[str]
    # Values whose type is in a step's set are not converted. The step of the context is None: jobs never have it.
    _dumps: Mapping[str, _Step | None]
    _loads: Mapping[str, _Step | None]
    _dump_extra: _Step | None
    _load_extra: _Step | None
    _writer: FastWriter
    schema: Mapping[str, Any]  # JSON Schema of the arguments

    @classmethod
    def from_function(cls, function: Callable[..., object], *, context_type: type) -> "Signature":
        """Read a handler's parameters, except the one annotated with `context_type`."""
        handler = _name(function)
        hints = hints_of(_annotated(function))
        parameters = parameters_of(function)
        for parameter in parameters.values():
            _check_kind(handler, parameter)
        context = _find_context(handler, [*parameters], hints, context_type)
        extra = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
        named = [p for p in parameters.values() if p.name not in (context, extra)]
        builder = ConverterBuilder()
        converters = {p.name: _build_converter(builder, handler, p, hints) for p in named}
        extras = _build_converter(builder, handler, parameters[extra], hints) if extra else None
        required = tuple(p.name for p in named if p.default is p.empty)
        no_step: dict[str, _Step | None] = {context: None} if context else {}
        return cls(
            handler=handler,
            context_parameter=context,
            _positional=tuple(p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD),
            _required=required,
            _required_names=frozenset(required),
            _dumps={name: (converter.plain, converter.dump) for name, converter in converters.items()} | no_step,
            _loads={name: (converter.plain, converter.load) for name, converter in converters.items()} | no_step,
            _dump_extra=(extras.plain, extras.dump) if extras else None,
            _load_extra=(extras.plain, extras.load) if extras else None,
            _writer=FastWriter({name: converter.plain for name, converter in converters.items()}, frozenset(required)),
            schema=object_schema(converters, required, extra=extras.schema if extras else False),
        )

    @property
    def optional_names(self) -> frozenset[str]:
        """The names of arguments that a job may leave out."""
        return frozenset(name for name, step in self._dumps.items() if step) - self._required_names

    @property
    def required_names(self) -> tuple[str, ...]:
        """The names of arguments that a job must have, in order."""
        return self._required

    def accepts(self, name: str) -> bool:
        """Return whether a job can have an argument of this name."""
        return self._dumps.get(name, self._dump_extra) is not None

    def dump(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, JSON]:
        """Return the arguments of a call as JSON, without the context. Defaults are left to the handler."""
        given = self._bind(args, kwargs) if args else kwargs
        return self._convert(given, self._dumps, self._dump_extra)

    def dump_some(self, given: Mapping[str, object]) -> dict[str, JSON]:
        """Return some of the arguments as JSON: others may be missing."""
        return self._convert(given, self._dumps, self._dump_extra, required=frozenset())

    def to_json(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name as JSON. They may be Python values, or JSON already."""
        try:
            return self.dump((), args)
        except InvalidArguments:
            self.load(dict(args))
            return dict(args)

    def write(self, args: tuple[object, ...], kwargs: Mapping[str, object], what: str, limit: int) -> str:
        """Return the arguments of a call as JSON text: `dump` and `dumps`, with a fast path for plain scalars."""
        given = self._bind(args, kwargs) if args else kwargs
        text = self._writer.write(given, limit)
        return dumps(self.dump((), given), what=what, limit=limit) if text is None else text

    def load(self, payload: object) -> dict[str, object]:
        """Return the keyword arguments for the call from decoded JSON."""
        if type(payload) is not dict:
            shown = "null" if payload is None else type(payload).__name__
            raise InvalidArguments(f"{self.handler}: the arguments must be a JSON object, not {shown}")
        steps = self._loads
        for name, value in payload.items():
            step = steps.get(name)
            if step is None or type(value) not in step[0]:
                return self._convert(payload, steps, self._load_extra)
        return (
            payload.copy()
            if self._required_names <= payload.keys()
            else self._convert(payload, steps, self._load_extra)
        )

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        if len(args) > len(self._positional):
            raise InvalidArguments(
                f"{self.handler}: takes {len(self._positional)} positional arguments, not {len(args)}"
            )
        named = dict(zip(self._positional, args, strict=False))
        for name in kwargs:
            if name in named:
                raise InvalidArguments(f'{self.handler}: argument "{name}" was given twice')
        return named | dict(kwargs)

    def _convert(
        self,
        given: Mapping[str, Any],
        steps: Mapping[str, _Step | None],
        extra: _Step | None,
        required: frozenset[str] | None = None,
    ) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        name = ""
        try:
            for name, value in given.items():
                step = steps.get(name, extra)
                if step is None or type(name) is not str:
                    self._refuse_name(name)
                plain, convert = step
                converted[name] = value if type(value) in plain else convert(value)
        except Mismatch as mismatch:
            place = location((name, *mismatch.path))
            raise InvalidArguments(f"{self.handler}: {place} {mismatch.problem}") from None
        except RecursionError:
            raise InvalidArguments(f'{self.handler}: argument "{name}" is nested too deeply') from None
        if not (self._required_names if required is None else required) <= converted.keys():
            missing = next(name for name in self._required if name not in converted)
            raise InvalidArguments(f'{self.handler}: missing argument "{missing}"')
        return converted

    def _refuse_name(self, name: object) -> NoReturn:
        if name == self.context_parameter:
            raise InvalidArguments(f'{self.handler}: argument "{name}" is the context, which awa passes itself')
        known = [name for name, step in self._dumps.items() if step]
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f' (did you mean "{close[0]}"?)' if close else ""
        raise InvalidArguments(f'{self.handler}: unexpected argument "{name}"{hint}')


def _name(function: Any) -> str:
    function = _unpartial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def _unpartial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _annotated(function: Any) -> Any:
    """Return the object that has the annotations. For an object with `__call__`, it is in its class."""
    function = _unpartial(function)
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__


def _check_kind(handler: str, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise InvalidJob(f"{handler}: *{parameter.name} is not supported: a job's arguments are stored by name")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidJob(
            f"{handler}: {parameter.name} is positional-only, which is not supported: a job's arguments are stored by "
            "name"
        )


def _find_context(handler: str, names: list[str], hints: Mapping[str, Any], context_type: type) -> str | None:
    found = [name for name in names if _is_context(hints.get(name), context_type)]
    if len(found) > 1:
        raise InvalidJob(f'{handler}: both "{found[0]}" and "{found[1]}" are annotated as the context')
    return found[0] if found else None


def _is_context(hint: Any, context_type: type) -> bool:
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        # A name that is only imported for type checkers cannot be resolved, but the name is enough.
        return hint.partition("|")[0].strip().rpartition(".")[2] == context_type.__name__
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(_is_context(member, context_type) for member in get_args(hint))
    return context_type in (hint, get_origin(hint))


def _build_converter(
    builder: ConverterBuilder, handler: str, parameter: inspect.Parameter, hints: Mapping[str, Any]
) -> Converter:
    hint = hints.get(parameter.name, Any)
    try:
        converter = builder.build(hint)
        # `to: str = None` is still common, and means that None is allowed.
        return optional(converter) if parameter.default is None else converter
    except InvalidJob as error:
        raise InvalidJob(f'{handler}: argument "{parameter.name}": {error}') from None
