"""The arguments of a handler: checked and turned into JSON when enqueued, and back when run."""

import difflib
import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ForwardRef, NoReturn, Union, cast, get_args, get_origin

from awa_py.arguments.annotations import hints_of, parameters_of
from awa_py.arguments.compiler import Compiler
from awa_py.arguments.composites import optional
from awa_py.arguments.converters import JSON, Convert, Converter, Mismatch, show_key
from awa_py.arguments.fast_writer import PlainWriter
from awa_py.errors import InvalidArguments, InvalidJob

Path = tuple[str | int, ...]
_Step = tuple[frozenset[type], Convert]


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The arguments of a handler: checked and turned to JSON when enqueued, and back when run."""

    handler: str
    context_parameter: str | None
    _positional: tuple[str, ...]
    _required: tuple[str, ...]
    _needed: frozenset[str]
    # Values of the types in a step's set stay as they are. The context's step is None: it is never given.
    _dumps: Mapping[str, _Step | None]
    _loads: Mapping[str, _Step | None]
    _dump_extra: _Step | None
    _load_extra: _Step | None
    _writer: PlainWriter

    @classmethod
    def from_function(cls, function: Callable[..., object], *, context_type: type) -> "Signature":
        """Read a handler's parameters, leaving out the one annotated with `context_type`."""
        handler = _name(function)
        hints = hints_of(_annotated(function))
        parameters = parameters_of(function)
        for parameter in parameters.values():
            _check_kind(handler, parameter)
        context = _find_context(handler, [*parameters], hints, context_type)
        extra = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
        named = [p for p in parameters.values() if p.name not in (context, extra)]
        compiler = Compiler()
        converters = {p.name: _compile(compiler, handler, p, hints) for p in named}
        extras = _compile(compiler, handler, parameters[extra], hints) if extra else None
        required = tuple(p.name for p in named if p.default is p.empty)
        never: dict[str, _Step | None] = {context: None} if context else {}
        return cls(
            handler=handler,
            context_parameter=context,
            _positional=tuple(p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD),
            _required=required,
            _needed=frozenset(required),
            _dumps={name: (converter.plain, converter.dump) for name, converter in converters.items()} | never,
            _loads={name: (converter.plain, converter.load) for name, converter in converters.items()} | never,
            _dump_extra=(extras.plain, extras.dump) if extras else None,
            _load_extra=(extras.plain, extras.load) if extras else None,
            _writer=PlainWriter({name: converter.plain for name, converter in converters.items()}, frozenset(required)),
        )

    def accepts(self, name: str) -> bool:
        """Whether a job can have an argument of this name."""
        return self._dumps.get(name, self._dump_extra) is not None

    def dump(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, JSON]:
        """The arguments of a call, without the context, as JSON; defaults are left to the handler."""
        given = self._bind(args, kwargs) if args else kwargs
        return self._convert(given, self._dumps, self._dump_extra)

    def write(self, args: tuple[object, ...], kwargs: Mapping[str, object], what: str, limit: int) -> str:
        """The arguments of a call as JSON text, by `dump` and `dumps`."""
        given = self._bind(args, kwargs) if args else kwargs
        text = self._writer.write(given, limit)
        return dumps(self.dump((), given), what=what, limit=limit) if text is None else text

    def load(self, payload: object) -> dict[str, object]:
        """The keyword arguments for the call, from decoded JSON."""
        if type(payload) is not dict:
            shown = "null" if payload is None else type(payload).__name__
            raise InvalidArguments(f"{self.handler}: the arguments must be a JSON object, not {shown}")
        steps = self._loads
        for name, value in payload.items():
            step = steps.get(name)
            if step is None or type(value) not in step[0]:
                return self._convert(payload, steps, self._load_extra)
        return payload.copy() if self._needed <= payload.keys() else self._convert(payload, steps, self._load_extra)

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
        self, given: Mapping[str, Any], steps: Mapping[str, _Step | None], extra: _Step | None
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
            place = _place((name, *mismatch.path))
            raise InvalidArguments(f"{self.handler}: {place} {mismatch.problem}") from None
        except RecursionError:
            raise InvalidArguments(f'{self.handler}: argument "{name}" is nested too deeply') from None
        if not self._needed <= converted.keys():
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


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dumps(value: object, *, what: str, limit: int, noun: str = "arguments") -> str:
    """Compact JSON that PostgreSQL can store, at most `limit` bytes; `what` and `noun` say whose it is."""
    try:
        text = _encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except RecursionError:
        raise InvalidJob(f"{what}: {noun}: nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        place, problem = _fault(value) or ((), str(error))
        raise InvalidJob(f"{what}: {_place(place, noun)}: {problem}") from None
    # The escape of NUL, or a backslash that somebody wrote before "u0000": only the value can tell.
    if "\\u0000" in text and (fault := _fault(value)):
        raise InvalidJob(f"{what}: {_place(fault[0], noun)}: {fault[1]}")
    if size > limit:
        raise InvalidJob(f"{what}: {_sizes(size, limit, noun)}")
    return text


def loads(text: str) -> JSON:
    """Decode JSON strictly, without NaN and Infinity, or raise InvalidJob."""
    try:
        return cast(JSON, _decode(text))
    except RecursionError:
        raise InvalidJob("the JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidJob(f"this is not JSON: {error}") from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _name(function: Any) -> str:
    function = _unpartial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def _unpartial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _annotated(function: Any) -> Any:
    """Where the annotations are: of an object with __call__, in its class."""
    function = _unpartial(function)
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__


def _check_kind(handler: str, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise InvalidJob(f"{handler}: *{parameter.name} cannot be a job's: its arguments are stored by name")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidJob(f"{handler}: {parameter.name} cannot be positional-only: a job's arguments are stored by name")


def _find_context(handler: str, names: list[str], hints: Mapping[str, Any], context_type: type) -> str | None:
    found = [name for name in names if _is_context(hints.get(name), context_type)]
    if len(found) > 1:
        raise InvalidJob(f'{handler}: both "{found[0]}" and "{found[1]}" are annotated as the context')
    return found[0] if found else None


def _is_context(hint: Any, context_type: type) -> bool:
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        # A name that is only imported for type checkers cannot be resolved, yet it says enough.
        return hint.partition("|")[0].strip().rpartition(".")[2] == context_type.__name__
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(_is_context(member, context_type) for member in get_args(hint))
    return context_type in (hint, get_origin(hint))


def _compile(compiler: Compiler, handler: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Converter:
    hint = hints.get(parameter.name, Any)
    try:
        converter = compiler.compile(hint)
        # `to: str = None` is still written, and means that None is fine.
        return optional(converter) if parameter.default is None else converter
    except InvalidJob as error:
        raise InvalidJob(f'{handler}: argument "{parameter.name}": {error}') from None


def _place(path: Path, noun: str = "arguments") -> str:
    if noun == "arguments" and len(path) == 1:
        return f'argument "{path[0]}"'
    return noun + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if show_key(part) == part else "[…]" for part in path
    )


def _fault(value: object, path: Path = (), inside: tuple[int, ...] = ()) -> tuple[Path, str] | None:
    """Where a value cannot be stored as JSON, and why."""
    match value:
        case None | bool():
            return None
        case str():
            problem = _text_fault(value)
        case float():
            problem = None if math.isfinite(value) else f"{json.dumps(value)} is not JSON"
        case int():
            problem = _integer_fault(value)
        case dict() | list() | tuple():
            if id(value) in inside:
                return path, "it holds itself"
            return _fault_within(value, path, (*inside, id(value)))
        case _:
            name = type(value).__name__
            problem = f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name} is not JSON-serializable"
    return (path, problem) if problem else None


def _fault_within(
    value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: Path, inside: tuple[int, ...]
) -> tuple[Path, str] | None:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for part, item in parts:
        if isinstance(value, dict):
            fault = _fault(part)
            if fault or isinstance(part, tuple):
                return path, f"in a key, {fault[1] if fault else 'a tuple is not JSON-serializable'}"
        if fault := _fault(item, (*path, part if isinstance(part, int) else str(part)), inside):
            return fault
    return None


def _text_fault(value: str) -> str | None:
    if "\0" in value:
        return r"\u0000 cannot be stored in PostgreSQL"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"the lone surrogate \\u{ord(value[error.start]):04x} cannot be stored in PostgreSQL"
    return None


def _integer_fault(value: int) -> str | None:
    try:
        int.__repr__(value)
    except ValueError:
        return "an integer of so many digits cannot be written"
    return None


def _sizes(size: int, limit: int, noun: str) -> str:
    shown, most = _size(size), _size(limit)
    if shown == most:
        shown, most = f"{size} bytes", f"{limit} bytes"
    return f"{shown} of {noun}, the limit is {most}"


def _size(size: int) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"
