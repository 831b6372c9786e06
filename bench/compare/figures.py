"""The figures of any result with their trials, found by field names; whether more is faster is declared by the result.

A figure is a float, or a number of bytes. Its trials stand beside it: in `trials_NAME`, or in `trials`, whose items
have a field or a property NAME. Trials that belong to no figure become a figure, their median. Settings are part of the
names of the figures below them: `products[mxfp6_e3m2, int16, rows 8].seconds`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from mxspec.evaluate.bench.harness import median
from mxspec.evaluate.result import Result

SETTINGS = frozenset({"temperature", "imposed_acceptance"})  # floats that the user chose
_SETTINGS = re.compile(r"\[.*?\]")  # in a figure's name
OUTCOMES = frozenset({"best_k", "same_texts", "nodes", "read_loop", "read_loops"})  # results that are not figures


@dataclass(frozen=True, slots=True)
class Series:
    """Trials; `keys` are the prompt and repetition of each trial, if the record says them."""

    values: tuple[float, ...]
    keys: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a result."""

    name: str
    value: float
    trials: Series | None = None
    faster_if_more: bool | None = None  # None if the result does not say


def settings_of(result: Result) -> dict[str, Any]:
    """The settings of the whole measurement."""
    return {name: value for name, value in result if _is_setting(name, value)}


def figures_of(result: Result) -> dict[str, Figure]:
    """All figures by their names, with the direction that the result declares."""
    figures = _walk("", _fields(result), {})
    return {figure.name: replace(figure, faster_if_more=_direction(result, figure.name)) for figure in figures}


def _direction(result: Result, name: str) -> bool | None:
    """Whether more is faster, by the innermost part of a figure's name that the result declares."""
    for part in reversed(_SETTINGS.sub("", name).split(".")):
        if part in result.faster_if_more:
            return True
        if part in result.faster_if_less:
            return False
    return None


def _walk(path: str, fields: Mapping[str, Any], outer: Mapping[str, Series]) -> Iterator[Figure]:
    """The figures of a value and of the values in it. `outer` are trials that stand beside the value."""
    trials = {**outer, **_trials(fields)}
    for name, value in fields.items():
        if name.startswith("trials") or name.endswith("_quartiles") or _is_setting(name, value) or name in OUTCOMES:
            continue
        yield from _figures(_join(path, name), value, name, trials)
    for name, series in trials.items():  # those that belong to no figure
        if len(series.values) > 1:
            yield Figure(_join(path, f"trials.{name}"), median(series.values), series)


def _figures(path: str, value: Any, name: str, trials: dict[str, Series]) -> Iterator[Figure]:
    if isinstance(value, bool | str) or value is None:
        return
    if isinstance(value, int | float):
        found = trials.pop(name, None)
        if math.isfinite(value):
            yield Figure(path, float(value), found)
    elif isinstance(value, dict):
        below = {part: trials.pop(f"{name}.{part}") for part in value if f"{name}.{part}" in trials}
        yield from _walk(path, value, below)
    elif isinstance(value, list | tuple):
        seen: set[str] = set()
        for number, item in enumerate(item for item in value if isinstance(item, BaseModel)):
            label = _label(_fields(item))
            label = f"{number}" if label in seen or not label else label
            seen.add(label)
            yield from _walk(f"{path}[{label}]", _fields(item), {})
    elif isinstance(value, BaseModel):
        below = {"median": trials.pop(name)} if name in trials and hasattr(value, "median") else {}
        yield from _walk(path, _fields(value), below)


def _trials(fields: Mapping[str, Any]) -> dict[str, Series]:
    found = {
        name.removeprefix("trials_"): Series(tuple(map(float, values)))
        for name, values in fields.items()
        if name.startswith("trials_") and _is_numbers(values)
    }
    trials = fields.get("trials")
    if isinstance(trials, list | tuple):
        return found | _series_of_items([dict(_leaves("", trial)) for trial in trials])
    if trials is not None:
        found |= {name: Series(tuple(values)) for name, values in _leaves("", trials) if _is_numbers(values)}
    return found


def _series_of_items(items: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """The fields that all trials have, where trials are values. Counts are left out: they are not speeds."""
    if not items:
        return {}
    every = set(items[0]).intersection(*items)
    names = [name for name in items[0] if name in every and all(isinstance(item[name], float) for item in items)]
    keys = tuple(tuple(item[name] for name in ("prompt", "repetition") if name in every) for item in items)
    unique = keys if keys[0] and len(set(keys)) == len(keys) else None
    return {name: Series(tuple(item[name] for item in items), unique) for name in names}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The numbers and lists of numbers in a value, at any depth."""
    if isinstance(value, int | float) or _is_numbers(value):
        yield path, value
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(_join(path, str(number)), item)
    elif value is not None and not isinstance(value, str):
        for name, part in _fields(value).items():
            yield from _leaves(_join(path, name), part)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(item, int | float) for item in value)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a value, a dataclass or a dictionary; for a value also its properties."""
    if isinstance(value, dict):
        return {str(name): part for name, part in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    own = {name: getattr(value, name) for name, kind in vars(type(value)).items() if isinstance(kind, property)}
    return dict(value) | own


def _is_setting(name: str, value: Any) -> bool:
    if name in SETTINGS:
        return True
    if isinstance(value, str):
        return name not in OUTCOMES
    return isinstance(value, int) and name not in OUTCOMES and not name.endswith("bytes")


def _label(fields: Mapping[str, Any]) -> str:
    """The settings of a value, such as `mxfp6_e3m2, rows 8`."""
    settings = {name: value for name, value in fields.items() if _is_setting(name, value) and value is not None}
    return ", ".join(value if isinstance(value, str) else f"{name} {value}" for name, value in settings.items())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
