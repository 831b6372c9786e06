"""All that the scheduler is asked for one text, checked; how its tokens are chosen is in sampling/settings.py."""

from __future__ import annotations

from dataclasses import dataclass

from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.scheduling.strategy import Strategy
from mxspec.runtime.verifiers.measured import Measured


@dataclass(frozen=True, slots=True)
class Settings:
    """How a text is to be written, checked: the prompt is not empty and fits, no k exceeds k_max.

    Where an encoder reads a `source` first, the prompt is what the decoder begins with.
    """

    prompt: list[int]
    sampling: Sampling  # with a seed
    strategy: Strategy
    max_new_tokens: int
    eos: frozenset[int]  # tokens that end the text
    measured: Measured | None = None  # learns what draft and target expected
    logprobs: int | None = None
    logprobs_of: str = "raw"
    cache_key: str = ""
    traced: bool = False
    source: tuple[int, ...] = ()
