"""What a JSON schema says about single values: where its references lead, and whether any document is finite.

Only what callers here need of JSON Schema (draft 2020-12, https://json-schema.org/draft/2020-12/schema):
local references, `type`, `const`, `enum`, `anyOf`, `oneOf`, `allOf`, `properties`, `required`, `items`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["has_finite_document", "resolve", "size_fault"]

MOST_BYTES, MOST_ENTRIES = 128 << 10, 2500
"""Of a schema as JSON, and of its objects together: what a grammar takes grows with the square of both, to
about a second at these (llguidance 1.x, one object of 1,000 properties: 0.4 s, a const of 100,000: 0.5 s)."""


def size_fault(schema: Any) -> str:
    """What makes a schema too large, as what follows its name in a sentence; empty for others.

    Takes time by these bounds alone, whatever the schema is.
    """
    size = entries = 0
    below = [schema]
    while below and size <= MOST_BYTES and entries <= MOST_ENTRIES:
        part = below.pop()
        size += 1  # at least, and what else is known of it
        if isinstance(part, str):
            size += len(part.encode(errors="replace"))
        elif isinstance(part, Mapping):
            entries += len(part)
            if entries <= MOST_ENTRIES:
                size += sum(len(key.encode(errors="replace")) for key in part if isinstance(key, str))
                below.extend(part.values())
        elif isinstance(part, (list, tuple)):
            size += len(part)
            if size <= MOST_BYTES:
                below.extend(part)
    if entries > MOST_ENTRIES:
        return f"has more than {MOST_ENTRIES:,} keywords and properties"
    return f"is larger than {MOST_BYTES:,} bytes" if size > MOST_BYTES else ""


def resolve(reference: Any, root: Any) -> Any:
    """What a local reference (`#/$defs/name`, RFC 6901) names in the schema `root`; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 9:
            found = found[int(key)] if int(key) < len(found) else None
        else:
            return None
    return found


def has_finite_document(schema: Any) -> bool:
    """False when every document that fits would hold itself: `{"$ref": "#"}`, a required property of its own
    kind. True says nothing more about the schema; a reference that leads nowhere counts as fitting.
    """
    waiting = {reference for reference in _references(schema) if resolve(reference, schema) is not None}
    finite: set[str] = set()
    while True:
        found = {r for r in waiting if _ends(resolve(r, schema), finite, waiting)}
        if not found:
            return _ends(schema, finite, waiting)
        waiting -= found
        finite |= found


def _references(schema: Any) -> Iterator[str]:
    below = [schema]
    while below:
        part = below.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            below.extend(part.values())
        elif isinstance(part, list):
            below.extend(part)


def _ends(schema: Any, finite: set[str], waiting: set[str]) -> bool:
    """Whether a document fits that needs no reference of `waiting`."""
    if not isinstance(schema, Mapping) or "const" in schema or "enum" in schema:
        return True
    if schema.get("$ref") in waiting:
        return False
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices and not any(_ends(c, finite, waiting) for c in choices):
            return False
    parts = schema.get("allOf")
    if isinstance(parts, list) and not all(_ends(part, finite, waiting) for part in parts):
        return False
    kinds = schema.get("type")
    if kinds == "object" or kinds == ["object"]:
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, Mapping) and isinstance(required, list):
            return all(_ends(properties.get(n), finite, waiting) for n in required if isinstance(n, str))
    if kinds == "array" or kinds == ["array"]:
        least = schema.get("minItems")
        if isinstance(least, int) and least > len(schema.get("prefixItems") or ()):
            return _ends(schema.get("items"), finite, waiting)
    return True
