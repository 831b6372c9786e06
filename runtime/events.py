"""The events of a text, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mxspec.runtime.round_trace import RoundTrace
from mxspec.runtime.sampling.logprobs import Logprob

FinishReason = Literal["eos", "stop", "grammar", "max_new_tokens", "context_end", "cancelled", "error"]


TARGET = "target"  # the origin of tokens that nobody drafted


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer, and the text that it completes (empty while a later token can still change it)."""

    id: int
    text: str
    origin: str  # the drafter that proposed it, "grammar", or "target"
    sample: int = 0  # which of the n samples of the prompt it belongs to
    logprob: Logprob | None = None  # None unless log-probabilities were asked for

    @property
    def drafted(self) -> bool:
        """Proposed and kept, not the target's own."""
        return self.origin != TARGET


@dataclass(frozen=True, slots=True)
class Round:
    """A finished round: `drafted` tokens were proposed, and `accepted` of the `evaluated` ones were kept.

    The seconds are those of the whole step, which other texts may have shared.
    """

    drafted: int
    evaluated: int
    accepted: int
    emitted: int
    draft_seconds: float
    target_seconds: float
    seconds: float  # the two models and all around them, but not what the reader does between events
    sample: int = 0
    stopped: bool = False  # the drafter proposed fewer tokens than asked for, because it was not sure enough
    experts: float | None = None  # that the step touched in a layer of a mixture, the mean of its layers
    trace: RoundTrace | None = None  # None unless a trace was asked for


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sums over a text, and the fields of its JSON. Emitted = steps = accepted + rounds, before a cut by an end.

    Of a beam search drafted, evaluated and accepted are steps, and accepted + rounds are the steps of the search.
    """

    prompt_tokens: int
    reused_tokens: int  # tokens of the prompt that a slot held already, so they were not read again
    reread_tokens: int  # tokens of the prompt that a slot had read, and that windows have passed since
    seed: int | None  # what the random numbers were drawn from; None where the text is greedy
    k: int | Literal["auto"]
    drafter: str
    verifier: str  # "greedy" where the text is, "beams" of a beam search
    proposal: str
    lossless: bool  # False where lenience was asked for: the text is not the target's own
    beams: int  # beams kept at a time; 1: no beam search
    steps: int  # tokens that the rounds have given; for a beam search, of its steps
    rounds: int
    drafted: int
    evaluated: int
    accepted: int
    bonus: int  # rounds in which all drafted tokens were kept
    origins: Mapping[str, int]  # emitted tokens, by who wrote them
    evaluated_by_position: tuple[int, ...]  # entry i: of the drafted tokens number i + 1 of each round
    accepted_by_position: tuple[int, ...]
    experts_a_step: float | None  # experts of a layer that a step after the first touched; None without experts
    rounds_by_k: Mapping[int, int]  # number of rounds by the number of drafted tokens
    waiting_seconds: float  # from the request to a free slot
    prefill_seconds: float  # from the free slot to the first token
    encode_seconds: float  # part of prefill_seconds: the target's encoder, whose call other texts may share
    decode_seconds: float  # all rounds after the first token, of which
    draft_seconds: float
    target_seconds: float
    emitted: int  # tokens handed to the reader

    @property
    def acceptance(self) -> float | None:
        """Accepted / evaluated; None where nothing was evaluated."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def kept_of(self) -> dict[str, int]:
        """Number of drafted tokens that were kept, by drafter."""
        return {origin: count for origin, count in self.origins.items() if origin != TARGET}

    @property
    def rest_seconds(self) -> float:
        """Seconds of the rounds outside both models: shaping, verifying, text."""
        return self.decode_seconds - self.draft_seconds - self.target_seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens per second after the first token; None without such tokens."""
        return (self.emitted - 1) / self.decode_seconds if self.emitted > 1 and self.decode_seconds > 0 else None

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens a round; the first token, which comes from the prompt alone, is not counted as a round."""
        emitted = self.emitted if self.beams == 1 else self.steps
        return (emitted - 1) / (self.rounds - 1) if self.rounds > 1 else None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a text."""

    reason: FinishReason
    statistics: Statistics
    tail: str = ""  # text still held back when the tokens ended
    sample: int = 0
    score: float | None = None  # of a beam search: the sum of log-probabilities / length ** length_penalty


Event = Token | Round | Finished
