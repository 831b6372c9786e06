"""The scheduler's view of a text, and the work that a text adds to a step: parts of the target's call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from mxspec.runtime.events import Event, FinishReason
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot, Taken
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.settings import Settings
from mxspec.runtime.scheduling.tally import Tally


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a step (perf_counter): when it began, and when its sources, drafts and scores were done.

    `experts` is the mean number of a layer's experts that scoring touched, None without experts.
    """

    began: float
    encoded: float
    drafted: float
    scored: float
    experts: float | None = None


class Outbox(Protocol):
    """Receives the events of a text; called by the thread that runs the steps."""

    def put(self, *events: Event | BaseException) -> None: ...


class ScheduledText(Protocol):
    """A text from its admission to its end, in one or several slots."""

    kind: str  # the kind of its planner
    settings: Settings
    followers: list[ScheduledText]  # samples of the same prompt, which wait until it has been read
    cancelled: bool
    tally: Tally

    @property
    def slots_needed(self) -> int:
        """Number of slots that the text holds from admission to end."""

    @property
    def slots(self) -> Sequence[Slot]:
        """Its slots; empty before admission."""

    @property
    def ended(self) -> bool: ...

    @property
    def reading(self) -> bool:
        """Whether its prompt has not been read to the end."""

    @property
    def unread(self) -> list[int]:
        """Tokens that the target has not read in the first slot; during reading, the rest of the prompt."""

    @property
    def drafts_at_once(self) -> bool:
        """Whether the draft must have read the prompt when the target has."""

    @property
    def draft_lag(self) -> int:
        """Number of tokens that the draft must read before it can guess."""

    def start(self, taken: Sequence[Taken], began: float, load: KByLoad) -> None:
        """Begin in these slots; the first may hold a prefix of the prompt."""

    def finish(self, reason: FinishReason) -> None:
        """End the text and free its slots."""

    def fail(self, error: BaseException) -> None:
        """End the text with an error, which its reader gets."""


def prompt_read(text: ScheduledText) -> int:
    """Number of tokens of a text's source and prompt that the target has read, or copied from another text."""
    source, prompt = text.settings.source, text.settings.prompt
    if not text.reading:
        return len(source) + len(prompt)
    if not text.slots:
        return 0
    return len(source) - text.slots[0].target_unencoded + text.slots[0].target_length


def draft_piece(text: ScheduledText, most: int) -> int:
    """Number of tokens that the draft reads next of those that it has to: about `most`, but a source whole."""
    return min(text.draft_lag, max(most, text.slots[0].draft_unencoded))


class Alone:
    """An error in here is of this text alone: it ends, and the others go on."""

    __slots__ = ("_text",)

    def __init__(self, text: ScheduledText) -> None:
        self._text = text

    def __enter__(self) -> None:
        """Nothing is prepared: a class because a generator takes 1 us more, several times a step."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self._text.fail(error)
            return True
        return False


class Work(Protocol):
    """The work of a step for one text."""

    @property
    def text(self) -> ScheduledText: ...

    @property
    def scored(self) -> bool:
        """Whether logits are wanted: False for a piece of a prompt that is not its last."""

    @property
    def planned(self) -> int:
        """The approximate number of tokens that it will add to the target's call."""

    @property
    def tokens(self) -> int:
        """Number of tokens that it adds to the target's call."""

    def look_aheads(self) -> list[tuple[Shaper, list[int]]]:
        """The look-aheads whose masks verification needs; masks are computed for all texts of a step together."""

    def parts(self) -> list[Part]:
        """The parts that it adds to the target's call, each in its own slot."""

    def read(self) -> None:
        """The target has read its parts."""

    def verify(self, rows: Logits, timing: Timing, load: KByLoad) -> None:
        """Emit the tokens that follow from the rows of its parts, float32[rows, vocab]."""


class Planner(Protocol):
    """Plans the steps of one kind of text."""

    kind: str

    def plan(self, texts: Sequence[Any]) -> tuple[Sequence[Work], Sequence[ScheduledText]]:
        """The work of texts whose prompts were read, and the texts among them that wait for their draft to read."""

    def piece(self, text: Any, count: int) -> Work:
        """The work of reading the next `count` tokens of a prompt."""

    def propose(
        self, reads: Sequence[tuple[Any, int]], works: Sequence[Any], texts: int
    ) -> list[tuple[str, int, float]]:
        """Let drafters read the given numbers of tokens, and guess for `works`, in a step of `texts` texts.

        Returns their calls: the drafter, the number of texts in the call, and seconds.
        """
