"""Checks JSON by the subset of JSON Schema that schema.json uses, without a package."""

import json
import math
import re
from pathlib import Path
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "number": (int, float), "integer": int,
}
_KEYWORDS = {
    "$schema", "$defs", "$ref", "title", "description", "type", "enum", "const", "anyOf", "pattern",
    "minimum", "minItems", "items", "properties", "required", "additionalProperties",
}


def of_results():
    """The schema of a result file."""
    return json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))


def problems(value, schema, root=None, where=""):
    """The errors as texts with their places; empty if there are none."""
    root = root or schema
    unknown = set(schema) - _KEYWORDS
    if unknown:
        raise ValueError(f"schema: keyword {sorted(unknown)[0]!r} is not known here")
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return problems(value, root["$defs"][name], root, where)
    place = where or "the file"
    if "anyOf" in schema:
        tried = [problems(value, one, root, where) for one in schema["anyOf"]]
        # Errors inside an alternative of the right type are more helpful than a wrong type.
        return min(tried, key=lambda found: (
            bool(found) and found[0].startswith(f"{place}: expected"), len(found)))
    if "type" in schema and not _is(value, schema["type"]):
        return [f"{place}: expected {schema['type']}, got {_brief(value)}"]
    if "const" in schema and value != schema["const"]:
        return [f"{place}: expected {schema['const']!r}, got {_brief(value)}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{place}: expected one of {schema['enum']}, got {_brief(value)}"]
    found = []
    if _is(value, "number") and not _finite(value):
        found.append(f"{place}: expected a finite number, got {_brief(value)}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        found.append(f"{place}: {value!r} does not look like {schema['pattern']}")
    if "minimum" in schema and _is(value, "number") and not value >= schema["minimum"]:
        found.append(f"{place}: expected at least {schema['minimum']}, got {value}")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            found.append(f"{place}: expected at least {schema['minItems']} items")
        for number, item in enumerate(value):
            found += problems(item, schema.get("items", {}), root, f"{where}[{number}]")
    if isinstance(value, dict):
        found += _object_problems(value, schema, root, where)
    return found


def _object_problems(value, schema, root, where):
    found = []
    properties = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            found.append(f"{where or 'the file'}: {name!r} is missing")
    for name, item in value.items():
        inside = f"{where}.{name}" if where else name
        rest = schema.get("additionalProperties", True)
        if name in properties:
            found += problems(item, properties[name], root, inside)
        elif rest is False:
            found.append(f"{inside}: is not in the schema")
        elif isinstance(rest, dict):
            found += problems(item, rest, root, inside)
    return found


def _is(value, kinds):
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if isinstance(value, bool) and kind in ("number", "integer"):
            continue
        if isinstance(value, _TYPES[kind]):
            return True
    return False


def _finite(value):
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _brief(value):
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
