"""How tokens are to be chosen, as the caller says it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import TypeGuard

from mxspec.formats.errors import GenerationError

MAX_TEMPERATURE = 1e30  # so that float32 holds it, and its quotients
MAX_BIAS = 1e4  # beyond it a bias decides alone, and float32 loses what it is added to

_SHAPING = ("top_k", "top_p", "min_p", "typical_p")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; the defaults of all others leave the distribution as it is.

    `logit_bias` adds to the logits of token ids; -inf forbids an id. `seed` None: the engine draws one (`seeded`).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    _: KW_ONLY
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self._real("temperature", 0, MAX_TEMPERATURE, f"0 (greedy) or a positive number up to {MAX_TEMPERATURE:g}")
        self._integer("top_k", 2**63, "0 (off) or a positive integer")
        self._real("top_p", math.ulp(0), 1, "more than 0 and at most 1 (off)")
        self._real("min_p", 0, 1, "0 (off) to 1")
        self._real("typical_p", math.ulp(0), 1, "more than 0 and at most 1 (off)")
        self._real("repetition_penalty", 1e-3, 1e3, "0.001 to 1000 (1: off)")
        self._integer("no_repeat_ngram_size", 2**63, "0 (off) or a positive integer")
        self._real("presence_penalty", -100, 100, "-100 to 100 (0: off)")
        self._real("frequency_penalty", -100, 100, "-100 to 100 (0: off)")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        if self.seed is not None:
            self._integer("seed", 2**64, "an integer from 0 to 2^64 - 1, or None")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """True where what stands in the text lowers or raises logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the settings that were given and do nothing, because temperature 0 is greedy."""
        if not self.greedy:
            return ()
        return tuple(name for name in _SHAPING if getattr(self, name) != type(self).__dataclass_fields__[name].default)

    def seeded(self) -> Sampling:
        """The same with a seed: its own, or one drawn here, of 53 bits: every reader of JSON keeps those."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(53))

    def _real(self, name: str, low: float, high: float, expected: str) -> None:
        """Make the setting a float between `low` and `high`, or say what was expected."""
        value = getattr(self, name)
        if not (_is_number(value) and low <= value <= high):  # NaN is in no range
            raise GenerationError(f"{name}: got {value!r}, expected {expected}")
        object.__setattr__(self, name, float(value))

    def _integer(self, name: str, end: int, expected: str) -> None:
        """Make the setting an int from 0 to `end` - 1, or say what was expected."""
        value = getattr(self, name)
        if not (_is_integer(value) and 0 <= value < end):
            raise GenerationError(f"{name}: got {value!r}, expected {expected}")
        object.__setattr__(self, name, int(value))


def _checked_bias(bias: object) -> Mapping[int, float]:
    """A copy that nobody can change, its keys int and its values float."""
    if not isinstance(bias, Mapping):
        raise GenerationError(f"logit_bias: got {bias!r}, expected token ids with numbers, as in {{5: -1.5}}")
    checked = {}
    for token, value in bias.items():
        if not (_is_integer(token) and token >= 0):
            raise GenerationError(f"logit_bias: got the token id {token!r}, expected an integer from 0 on")
        if not (_is_number(value) and (value == -math.inf or abs(value) <= MAX_BIAS)):
            raise GenerationError(
                f"logit_bias of token {token}: got {value!r}, expected a number from {-MAX_BIAS:g} to {MAX_BIAS:g}, "
                f"or -inf to forbid it"
            )
        checked[int(token)] = float(value)
    return MappingProxyType(checked)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)
