"""How tokens are chosen, every parameter set and checked, and beams. formats/sampling.py declares the parameters."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Never

from mxspec.formats.errors import GenerationError
from mxspec.formats.sampling import DRAWN, MAX_BIAS, PARAMETERS, SamplingParameters, is_integer, is_number

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Sampling(SamplingParameters[Never]):
    """How tokens are chosen; a parameter that is not given has the default of its declaration.

    `logit_bias` adds to the logits of token ids; -inf forbids an id. `seed` None: the engine draws one (`seeded`).
    """

    def __post_init__(self) -> None:
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if parameter.kind == "bias":
                value = _checked_bias(value)
            elif value is None and (parameter.bundled or parameter.default is None):
                value = parameter.default
            elif not parameter.accepts(value):
                raise GenerationError(name, f"got {value!r}, expected {parameter.expected}")
            else:
                value = float(value) if parameter.kind == "number" else int(value)
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether tokens that the text has already get lower or higher logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the parameters that were given and do nothing, because temperature 0 is greedy."""
        if not self.greedy:
            return ()
        return tuple(name for name in DRAWN if getattr(self, name) != PARAMETERS[name].default)

    def seeded(self) -> Sampling:
        """These settings with a seed: their own, or one drawn here, of 53 bits, which every reader of JSON keeps."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(53))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """`count` beams are kept at a time, and the `best` texts are answered.

    A text's score is the sum of its tokens' log-probabilities over length ** length_penalty: above 0 long texts gain,
    below 0 short ones. `early_stopping` True ends the search with the first `count` texts that have ended, False where
    the best beam would not be better if it ended now, "never" where it could not be at any length (for a positive
    penalty judged by the longest length).
    """

    count: int
    best: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    counted: int = 0  # tokens that the prompt ends with and the length counts: those that a decoder has to begin with
    draft_beams: int | None = None  # of the draft's search, where k is given; None: twice `count`


def _checked_bias(bias: object) -> Mapping[int, float]:
    """An immutable copy, its keys int and its values float."""
    if not isinstance(bias, Mapping):
        raise GenerationError("logit_bias", f"got {bias!r}, expected token ids with numbers, as in {{5: -1.5}}")
    checked = {}
    for token, value in bias.items():
        if not (is_integer(token) and token >= 0):
            raise GenerationError("logit_bias", f"got the token id {token!r}, expected an integer from 0 on")
        if not (is_number(value) and (value == -math.inf or abs(value) <= MAX_BIAS)):
            raise GenerationError(
                "logit_bias",
                f"got {value!r} for token {token}, expected a number from {-MAX_BIAS:g} to {MAX_BIAS:g}, "
                f"or -inf to forbid it",
            )
        checked[int(token)] = float(value)
    return MappingProxyType(checked)
