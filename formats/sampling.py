"""The sampling parameters, one declaration each. To add one, add its line here, and act on it in runtime/sampling/.

From these lines come the settings of a request, the defaults that a bundle holds, the options of commands, the fields
that the server takes, and the check of each value (docs/architecture.md has the whole list).
"""

# ruff: noqa: RUF009  # the calls make fields

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeGuard, TypeVar

MAX_TEMPERATURE = 1e30  # so that float32 holds it, and its quotients
MAX_BIAS = 1e4  # beyond it a bias decides alone, and float32 loses what it is added to

Kind = Literal["number", "integer", "bias"]
Unset = TypeVar("Unset", bound=None)  # None where a parameter may be left to the bundle, Never where all are set


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is known of a sampling parameter: `low` to `high` are its values, `expected` says so in an error.

    `bundled`: a bundle may hold a default, from the checkpoint's generation_config.json. `drawn`: it shapes what is
    drawn, and does nothing at temperature 0. Requests of other servers have it under these names: `openai`, `vllm`
    (and llama.cpp), `ollama`; empty: they have no such setting.
    """

    kind: Kind
    default: Any
    help: str
    expected: str = ""
    low: float = -math.inf
    high: float = math.inf
    bundled: bool = False
    drawn: bool = False
    openai: str = ""
    vllm: str = ""
    ollama: str = ""

    def accepts(self, value: object) -> bool:
        """Whether a number is of its kind and within its range; NaN is in no range. A bias is checked by its tokens."""
        if self.kind == "number":
            return is_number(value) and self.low <= value <= self.high
        return is_integer(value) and self.low <= value <= self.high


def _parameter(kind: Kind, default: Any, **known: Any) -> Any:
    """A field whose metadata is the declaration; None where a bundle may hold a default."""
    parameter = Parameter(kind, default, **known)
    return field(default=None if parameter.bundled else default, metadata={"parameter": parameter})


@dataclass(frozen=True, slots=True)
class SamplingParameters(Generic[Unset]):
    """How tokens are chosen. Temperature 0 is greedy; the defaults of all others leave the distribution as it is."""

    temperature: float | Unset = _parameter(
        "number",
        0.0,
        low=0,
        high=MAX_TEMPERATURE,
        expected=f"0 (greedy) or a positive number up to {MAX_TEMPERATURE:g}",
        help="Sampling temperature; 0 is greedy: always the likeliest token.",
        bundled=True,
        openai="temperature",
        ollama="temperature",
    )
    top_k: int | Unset = _parameter(
        "integer",
        0,
        low=0,
        high=2**63 - 1,
        expected="0 (off) or a positive integer",
        help="Sample from the K likeliest tokens only; 0 is off.",
        bundled=True,
        drawn=True,
        vllm="top_k",
        ollama="top_k",
    )
    top_p: float | Unset = _parameter(
        "number",
        1.0,
        low=math.ulp(0),
        high=1,
        expected="more than 0 and at most 1 (off)",
        help="Sample from the likeliest tokens whose probabilities add up to P; 1 is off.",
        bundled=True,
        drawn=True,
        openai="top_p",
        ollama="top_p",
    )
    seed: int | None = _parameter(
        "integer",
        None,
        low=0,
        high=2**64 - 1,
        expected="an integer from 0 to 2^64 - 1",
        help="Seed of the random numbers.  [default: drawn, and reported]",
        openai="seed",
        ollama="seed",
    )
    _: KW_ONLY
    min_p: float | Unset = _parameter(
        "number",
        0.0,
        low=0,
        high=1,
        expected="0 (off) to 1",
        help="Sample from tokens with at least this share of the likeliest token's probability; 0 is off.",
        bundled=True,
        drawn=True,
        vllm="min_p",
        ollama="min_p",
    )
    typical_p: float | Unset = _parameter(
        "number",
        1.0,
        low=math.ulp(0),
        high=1,
        expected="more than 0 and at most 1 (off)",
        help="Sample from the most typical tokens whose probabilities add up to P; 1 is off.",
        bundled=True,
        drawn=True,
        vllm="typical_p",
        ollama="typical_p",
    )
    repetition_penalty: float | Unset = _parameter(
        "number",
        1.0,
        low=1e-3,
        high=1e3,
        expected="0.001 to 1000 (1: off)",
        help="Divide the logits of tokens that the prompt or the answer has already; 1 is off.",
        bundled=True,
        vllm="repetition_penalty",
        ollama="repeat_penalty",
    )
    no_repeat_ngram_size: int | Unset = _parameter(
        "integer",
        0,
        low=0,
        high=2**63 - 1,
        expected="0 (off) or a positive integer",
        help="Write no sequence of N tokens twice; 0 is off.",
        bundled=True,
    )
    presence_penalty: float = _parameter(
        "number",
        0.0,
        low=-100,
        high=100,
        expected="-100 to 100 (0: off)",
        help="Subtract from the logits of tokens that the answer has already; 0 is off.",
        openai="presence_penalty",
        ollama="presence_penalty",
    )
    frequency_penalty: float = _parameter(
        "number",
        0.0,
        low=-100,
        high=100,
        expected="-100 to 100 (0: off)",
        help="Subtract from a token's logit for each time that the answer has it already; 0 is off.",
        openai="frequency_penalty",
        ollama="frequency_penalty",
    )
    logit_bias: Mapping[int, float] = field(
        default_factory=dict,
        hash=False,
        metadata={
            "parameter": Parameter(
                "bias",
                {},
                help="Add VALUE to the logit of token ID; -inf forbids the token. May be given several times.",
                openai="logit_bias",
            )
        },
    )


PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {each.name: each.metadata["parameter"] for each in fields(SamplingParameters)}
)
BUNDLED = tuple(name for name, parameter in PARAMETERS.items() if parameter.bundled)
DRAWN = tuple(name for name, parameter in PARAMETERS.items() if parameter.drawn)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)
