"""Records of before results had types, brought into today's form; gone once those are measured again.

What such a record does not say is nan or empty here, and has no place in a table.
"""

from __future__ import annotations

import math
from types import UnionType
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel

from mxspec.evaluate.result import Result

Found = TypeVar("Found", bound=Result)
TRIALS_OF_TEXTS = {  # of specbench batch, before they were named like their figures
    "plain": "tokens_per_second",
    "outside": "outside_models",
    "outside_sampled": "outside_models_sampled",
    "loop_over_plain": "time_over_plain_loop",
    "by_k": "tokens_per_second_by_k",
}


def read_result(kind: type[Found], result: dict[str, Any]) -> Found:
    """A record's result, of today or of before."""
    if "rows" in result and "drafters" in kind.model_fields:
        result = result | {"drafters": {"model": {"rows": result["rows"], "auto": result.get("auto")}}}
    if "second_turn" in kind.model_fields:
        result = result | {"rows": [row | {"trials": _renamed(row["trials"])} for row in result["rows"]]}
    return kind.model_validate(_completed(kind, result))


def _renamed(trials: dict[str, Any]) -> dict[str, Any]:
    return {TRIALS_OF_TEXTS.get(name, name): values for name, values in trials.items()}


def _completed(kind: Any, value: Any) -> Any:
    """A value of a type, with all fields of it and no others."""
    if get_origin(kind) is UnionType:  # of a type or None
        return None if value is None or value == {} else _completed(kind.__args__[0], value)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields
        return {
            name: _completed(field.annotation, value.get(name, _unknown(field.annotation)))
            for name, field in fields.items()
        }
    arguments = getattr(kind, "__args__", ())
    if get_origin(kind) is tuple and arguments[-1] is Ellipsis:
        return [_completed(arguments[0], item) for item in value]
    if get_origin(kind) is dict:
        return {key: _completed(arguments[1], item) for key, item in value.items()}
    return value


def _unknown(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {}
    if get_origin(kind) is tuple:
        return [] if kind.__args__[-1] is Ellipsis else [math.nan] * len(kind.__args__)
    return {float: math.nan, int: 0, str: "", dict: {}}.get(get_origin(kind) or kind)
