"""What a generation tells its reader, in the order in which it happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["eos", "max_new_tokens", "context_end"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer, and the text that it completes (empty while a character is still in pieces)."""

    id: int
    text: str
    drafted: bool  # proposed by the draft and kept, not the target's own


@dataclass(frozen=True, slots=True)
class Round:
    """One round is over: `drafted` tokens were proposed, `accepted` of the `evaluated` were kept."""

    drafted: int
    evaluated: int
    accepted: int
    emitted: int
    draft_seconds: float
    target_seconds: float
    seconds: float  # the two models and all around them, but not what the reader does between events


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sums over a generation. Emitted = accepted + rounds, before a cut by EOS or limit."""

    prompt_tokens: int
    emitted: int  # tokens handed to the reader
    rounds: int
    drafted: int
    evaluated: int
    accepted: int
    bonus: int  # rounds in which all drafted tokens were kept
    prefill_seconds: float  # both models' reading of the prompt, up to the first token
    decode_seconds: float  # all rounds behind the first token, of which
    draft_seconds: float
    target_seconds: float

    @property
    def acceptance(self) -> float | None:
        """Accepted / evaluated; None where nothing was evaluated."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first, a second; None where there were none."""
        return (self.emitted - 1) / self.decode_seconds if self.emitted > 1 and self.decode_seconds > 0 else None

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens a round; the first token, which comes from the prompt alone, is not counted as a round."""
        return (self.emitted - 1) / (self.rounds - 1) if self.rounds > 1 else None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    reason: FinishReason
    statistics: Statistics
    tail: str = ""  # text still held back when the tokens ended: an incomplete character


Event = Token | Round | Finished
