"""JSON and pydantic made strict and terse: no duplicate keys, no NaN, and the first mistake told in one line."""

from __future__ import annotations

import json
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from mxspec.formats.errors import MxspecError, did_you_mean


class Strict(BaseModel):
    """Base of everything read from a file: unknown keys, coerced types and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def parse_json(text: bytes | str, what: str, error: type[MxspecError]) -> Any:
    """Parse JSON; duplicate keys, NaN, trailing data and absurd nesting raise `error` naming `what`."""

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"key {twice!r} stands there twice")
        return keys

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse)
    except (ValueError, RecursionError) as problem:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise error(f"{what}: not valid JSON: {problem}") from None


def first_problem(problems: ValidationError, model: type[BaseModel]) -> str:
    """Where and what the first mistake is; an unknown key goes first, for it often is the reason of a missing one."""
    found = problems.errors(include_url=False)
    worst = next((problem for problem in found if problem["type"] == "extra_forbidden"), found[0])
    location = [str(part) for part in worst["loc"]]
    where = ".".join(location)
    if worst["type"] == "extra_forbidden":
        return f"unknown key {where!r}{did_you_mean(location[-1], _known_keys(model, location[:-1]))}"
    if worst["type"] == "missing":
        return f"key {where!r} is missing"
    message = worst["msg"].removeprefix("Value error, ")
    return f"{where}: {message}, got {_shorten(worst['input'])}" if where else message


def _known_keys(model: type[BaseModel], location: list[str]) -> list[str]:
    """Keys that the object at `location` may have, found by walking the annotations."""
    kind: Any = model
    for part in location:
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        kind = kind.model_fields[part].annotation if is_model else _item_type(kind)
        kind = (
            next((choice for choice in get_args(kind) if choice is not type(None)), kind) if _optional(kind) else kind
        )
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _item_type(kind: Any) -> Any:
    """Type of an entry of dict[str, T], list[T] or tuple[T, ...]."""
    arguments = [argument for argument in get_args(kind) if argument is not Ellipsis]
    return arguments[-1] if arguments else None


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
