"""Converters that contain others: arrays, mappings, records and unions; and the converter for any JSON."""

import json
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any

from awa_py.arguments.converters import (
    JSON,
    JSON_SCALARS,
    NONE,
    Convert,
    Converter,
    Mismatch,
    either,
    show_key,
    wrong_type,
    wrong_value,
)

# For each annotation: the type that is accepted, and the function that makes the value for the handler.
ARRAYS: dict[type, tuple[type, Callable[[list[Any]], Any]]] = {
    list: (list, list),
    tuple: (tuple, tuple),
    set: (set, set),
    frozenset: (frozenset, frozenset),
    abc.Sequence: (abc.Sequence, list),
    abc.MutableSequence: (abc.MutableSequence, list),
    abc.Collection: (abc.Collection, list),
    abc.Iterable: (abc.Collection, list),
    abc.Set: (abc.Set, frozenset),
    abc.MutableSet: (abc.MutableSet, set),
}
MAPPINGS = frozenset({dict, abc.Mapping, abc.MutableMapping})


def _any(value: Any) -> Any:
    """Return plain JSON as it is. Keys are checked because json turns 1 into "1" and not back."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Mismatch(
                    f"has a key of type {type(key).__name__}: without an annotation, keys are strings", near=True
                )
            if type(item) not in JSON_SCALARS:
                _convert_part(key, _any, item)
    elif isinstance(value, (list, tuple)):
        _convert_each(_any, JSON_SCALARS, value)
    return value


def _convert_part(part: str | int, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except Mismatch as mismatch:
        raise mismatch.inside(part) from None


def _convert_each(convert: Convert, plain: frozenset[type], values: Iterable[Any]) -> list[Any]:
    converted: list[Any] = []
    try:
        for value in values:
            converted.append(value if type(value) in plain else convert(value))  # noqa: PERF401
    except Mismatch as mismatch:
        raise mismatch.inside(len(converted)) from None
    return converted


ANY = Converter("JSON", dump=_any, load=lambda value: value, plain=JSON_SCALARS)


def array(cls: Any, item: Converter) -> Converter:
    accepted: Any
    accepted, build = ARRAYS[cls]
    name = cls.__name__

    def dump(value: Any) -> Any:
        if not isinstance(value, accepted) or isinstance(value, (str, bytes, bytearray, Mapping)):
            raise wrong_type(name, value)
        items = _convert_each(item.dump, item.plain, value)
        # Equal sets give equal JSON in every process: unique keys depend on it.
        return sorted(items, key=_sortable) if isinstance(value, abc.Set) else items

    def load(value: Any) -> Any:
        if type(value) is not list:
            raise wrong_type(name, value)
        items = _convert_each(item.load, item.plain, value)
        try:
            return build(items)
        except TypeError:  # a set with an element that cannot be hashed
            raise wrong_value(name, value) from None

    return Converter(name, dump, load, exact=cls, schema={"type": "array", "items": item.schema})


def _sortable(value: JSON) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def fixed_tuple(items: list[Converter]) -> Converter:
    def convert(value: Any, functions: list[Convert], expected: Any) -> list[Any]:
        if not isinstance(value, expected):
            raise wrong_type("tuple", value)
        if len(value) != len(items):
            raise Mismatch(f"must have {len(items)} items, not {len(value)}", near=True)
        return [_convert_part(index, functions[index], part) for index, part in enumerate(value)]

    dumps, loads = [item.dump for item in items], [item.load for item in items]
    return Converter(
        "tuple",
        dump=lambda value: convert(value, dumps, tuple),
        load=lambda value: tuple(convert(value, loads, list)),
        exact=tuple,
        schema={
            "type": "array",
            "prefixItems": [item.schema for item in items],
            "minItems": len(items),
            "maxItems": len(items),
        },
    )


def mapping(cls: Any, key: Converter, item: Converter) -> Converter:
    name = cls.__name__

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise wrong_type(name, value)
        return {
            dump_key(part): entry if type(entry) in item.plain else _convert_part(str(part), item.dump, entry)
            for part, entry in value.items()
        }

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong_type(name, value)
        return {
            load_key(part): entry if type(entry) in item.plain else _convert_part(part, item.load, entry)
            for part, entry in value.items()
        }

    def dump_key(part: Any) -> str:
        if type(part) is str and str in key.plain:
            return part
        try:
            encoded = key.dump(part)
            written = encoded if type(encoded) is str else json.dumps(encoded)
            if load_key(written) == part:
                return written
        except Mismatch:
            pass
        raise Mismatch(f"has a key that is not {key.name}", near=True)

    def load_key(part: str) -> Any:
        try:
            return key.load(part)
        except Mismatch:
            pass
        try:
            return key.load(json.loads(part))
        except (Mismatch, ValueError):
            raise Mismatch(f"has a key that is not {key.name}", near=True) from None

    return Converter(name, dump, load, exact=cls, schema={"type": "object", "additionalProperties": item.schema})


def record(
    cls: Any,
    fields: Mapping[str, Converter],
    required: abc.Set[str],
    *,
    accepts: Callable[[object], bool],
    read: Convert,
    build: Callable[..., Any],
) -> Converter:
    """Return the converter of an object with named fields: a dataclass, a NamedTuple or a TypedDict."""
    name = cls.__name__
    dumps = {field: converter.dump for field, converter in fields.items()}
    loads = {field: converter.load for field, converter in fields.items()}

    def convert(parts: Mapping[str, Any], functions: Mapping[str, Convert]) -> dict[str, Any]:
        for field in parts:
            if field not in functions:
                raise Mismatch(f'has an unexpected "{show_key(field)}"', near=True)
        for field in fields:
            if field in required and field not in parts:
                raise Mismatch(f'is missing "{field}"', near=True)
        return {field: _convert_part(field, functions[field], part) for field, part in parts.items()}

    def dump(value: Any) -> Any:
        if not accepts(value):
            raise wrong_type(name, value)
        return convert(read(value), dumps)

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong_type(name, value)
        parts = convert(value, loads)
        try:
            return build(**parts)
        except (TypeError, ValueError) as error:
            raise Mismatch(f"cannot become {name}: it raised {type(error).__name__}", near=True) from None

    return Converter(name, dump, load, exact=cls, schema=object_schema(fields, required, extra=False))


def object_schema(
    fields: Mapping[str, Converter], required: abc.Collection[str], *, extra: Mapping[str, Any] | bool
) -> dict[str, Any]:
    """Return the JSON Schema of an object. `extra` is the schema of other members; False: it has none."""
    return {
        "type": "object",
        "properties": {name: converter.schema for name, converter in fields.items()},
        "required": sorted(required),
        "additionalProperties": extra,
    }


def optional(converter: Converter) -> Converter:
    """Return a converter that also accepts None."""
    return union([converter, NONE])


def union(members: list[Converter]) -> Converter:
    name = either([member.name for member in members])
    plain = frozenset[type]().union(*(member.plain for member in members))
    is_ambiguous = sum(not member.plain for member in members) > 1 or not plain <= {NoneType}

    def dump(value: Any) -> Any:
        if type(value) in plain:
            return value
        mismatches = []
        for member in sorted(members, key=lambda member: member.exact is not type(value)):
            try:
                encoded = member.dump(value)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
                continue
            back = reader(encoded) if is_ambiguous else member
            if back is not member:
                raise Mismatch(
                    f"is {member.name}, but would be read back as {back.name}: annotate it as {member.name} alone",
                    near=True,
                )
            return encoded
        raise closest(mismatches, value)

    def load(value: Any) -> Any:
        return value if type(value) in plain else attempt(value)[1]

    def reader(value: Any) -> Converter:
        return next((member for member in members if type(value) in member.plain), None) or attempt(value)[0]

    def attempt(value: Any) -> tuple[Converter, Any]:
        mismatches = []
        for member in members:
            try:
                return member, member.load(value)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        raise closest(mismatches, value)

    def closest(mismatches: list[Mismatch], value: Any) -> Mismatch:
        near = [mismatch for mismatch in mismatches if mismatch.near]
        return near[0] if len(near) == 1 else wrong_type(name, value)

    return Converter(name, dump, load, plain, schema=_union_schema([member.schema for member in members]))


def _union_schema(schemas: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if not all(schemas):  # one of them accepts any JSON
        return {}
    types = [schema.get("type", ()) for schema in schemas]
    listed = dict.fromkeys(one for each in types for one in ([each] if isinstance(each, str) else each))
    merged: dict[str, Any] = {"type": list(listed)} if all(types) else {}
    return merged if all(schema.keys() == {"type"} for schema in schemas) else {**merged, "anyOf": schemas}
