"""JSON and pydantic made strict and terse: no duplicate keys, no NaN, and the first mistake in one line."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mxspec.formats.errors import MxspecError, did_you_mean

_PLAIN_WORDS = (  # pydantic's sentences in our form
    (r"^\w+ should be ", "expected "),
    (r"^\w+ should ", "expected to "),
    ("less than or equal to", "at most"),
    ("greater than or equal to", "at least"),
    ("greater than", "more than"),
    ("a valid integer", "a whole number"),
    ("a valid string", "text"),
    ("a valid dictionary( or instance of [A-Za-z]+)?", "an object"),
    ("a valid (list|number)", r"a \1"),
    ("a valid boolean", "true or false"),
    (", unable to parse raw data as a unicode string", ""),
    (" after validation, not [0-9]+", ""),
)


class Strict(BaseModel):
    """Base of everything read from a file: unknown keys, coerced types and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def with_fields(declared: Mapping[str, tuple[Any, Any]]) -> Any:
    """A strict class to inherit from, with these fields: a type and a default for each name."""
    return create_model("Declared", __base__=Strict, **dict[str, Any](declared))


def parse_json(text: bytes | str, what: str, error: type[MxspecError], *, finite: bool = True) -> Any:
    """Parse JSON; duplicate keys, trailing data and absurd nesting raise `error` naming `what`.

    So do NaN and infinities, if all numbers must be `finite`.
    """
    numbers: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, **numbers)
    except (ValueError, RecursionError) as problem:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise error(f"{what}: not valid JSON: {problem}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {shorten(twice)} appears twice")
    return keys


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value


def first_problem(problems: ValidationError, model: type[BaseModel]) -> str:
    """Where and what the first mistake is; an unknown key goes first, for it often is the reason of a missing one."""
    found = problems.errors(include_url=False)
    worst = next((problem for problem in found if problem["type"] == "extra_forbidden"), found[0])
    location = [str(part) for part in worst["loc"]]
    where = ".".join(location)
    if worst["type"] == "extra_forbidden":
        return f"unknown key {shorten(where)}{did_you_mean(location[-1], _known_keys(model, location[:-1]))}"
    if worst["type"] == "missing":
        return f"key {shorten(where)} is missing"
    message = in_plain_words(worst["msg"])
    if worst["type"] == "value_error" and isinstance(worst["input"], Mapping):
        return f"{where[:200]}: {message}" if where else message  # it says what does not go with what
    return f"{where[:200]}: {message}, got {shorten(worst['input'])}" if where else message


def in_plain_words(message: str) -> str:
    """A sentence of pydantic's, or of a validator of ours, in our form."""
    message = message.removeprefix("Value error, ")
    for pattern, plain in _PLAIN_WORDS:
        message = re.sub(pattern, plain, message)
    return message


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


def shorten(value: Any) -> str:
    """How a value of a file looks in an error: its first 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shorten_json(value: Any) -> str:
    """How a value of a request looks in an error: as the client wrote it, its first 60 characters."""
    text = json.dumps(value, ensure_ascii=not isinstance(value, str) or not value.isprintable())
    return text if len(text) <= 60 else f"{text[:57]}..."
