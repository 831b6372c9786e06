"""The checked settings of one text for the scheduler; sampling/settings.py has those for choosing tokens."""

from __future__ import annotations

from dataclasses import dataclass

from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.scheduling.strategy import Strategy
from mxspec.runtime.verifiers.measured import Measured


@dataclass(frozen=True, slots=True)
class Settings:
    """How to write a text, checked: the prompt is not empty and fits, and k is at most k_max.

    If an encoder reads a `source`, the prompt holds the decoder's first tokens.
    """

    prompt: list[int]
    sampling: Sampling  # with a seed
    strategy: Strategy
    max_new_tokens: int
    eos: frozenset[int]  # tokens that end the text
    measured: Measured | None = None  # receives the distributions of draft and target
    logprobs: int | None = None
    logprobs_of: str = "raw"
    cache_key: str = ""
    traced: bool = False
    source: tuple[int, ...] = ()
