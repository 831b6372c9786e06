"""A text as the scheduler sees it, and what it adds to a step: parts of the target's call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from mxspec.runtime.events import Event, FinishReason
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot, Slots
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.scheduling.tally import Tally, Timing


class Outbox(Protocol):
    """Receives the events of a text; called by the thread that runs the steps."""

    def put(self, *events: Event | BaseException) -> None: ...


class ScheduledText(ABC):
    """A text from its admission to its end, in one or several slots; each kind of text is a class.

    A step takes it through `plan` or `plan_piece`, `draft`, `parts`, `was_read`, `verify` and `emit`, in this order.
    """

    slots_needed = 1  # from admission to end
    answers = 1  # in its events

    def __init__(self, settings: ChosenSettings, outbox: Outbox, beams: int = 1) -> None:
        self.settings = settings
        self.tokens = list(settings.prompt)
        self.tally = Tally(settings, beams=beams)
        self.followers: list[ScheduledText] = []  # samples of the same prompt, which wait until it has been read
        self.cancelled = False  # set by any thread
        self.ended = False
        self.slots: list[Slot] = []  # empty before admission
        self.outbox = outbox
        # its part of a step
        self.scored = True  # whether logits are wanted: not of a piece of a prompt that is not its last
        self.piece: list[int] = []  # tokens that the target reads before any guess

    @property
    def unread(self) -> list[int]:
        """Tokens that the target has not read in the first slot; during reading, the rest of the prompt."""
        return self.tokens[self.slots[0].target_length :]

    @property
    @abstractmethod
    def reading(self) -> bool:
        """Whether its prompt has not been read to the end."""

    @property
    @abstractmethod
    def drafts_at_once(self) -> bool:
        """Whether the draft must have read the prompt when the target has."""

    @property
    @abstractmethod
    def draft_lag(self) -> int:
        """Number of tokens that the draft must read before it can guess."""

    def start(self, slots: list[Slot], began: float, load: KByLoad) -> None:
        """Begin in these slots; the first may hold a prefix of the prompt."""
        self.slots = slots
        self.tally.begin(began, slots[0])

    @abstractmethod
    def finish(self, reason: FinishReason) -> None:
        """End the text and free its slots."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End the text with an error, which its reader gets."""

    # --- its part of a step ---

    @staticmethod
    @abstractmethod
    def plan(texts: Sequence[Any], load: KByLoad, slots: Slots) -> tuple[Sequence[Any], Sequence[Any]]:
        """Plan a round of texts of this class whose prompts were read.

        Returns those that go on, and those among them that wait for their draft to read.
        """

    @abstractmethod
    def plan_piece(self, count: int) -> None:
        """Plan to read the next `count` tokens of the prompt."""

    @staticmethod
    @abstractmethod
    def draft(
        reads: Sequence[tuple[Any, int]], texts: Sequence[Any], load: KByLoad, scored: int
    ) -> list[tuple[str, int, float]]:
        """Let drafters read the given numbers of tokens, and guess for `texts`, in a step that scores `scored` texts.

        Returns their calls: the drafter, the number of texts in the call, and seconds.
        """

    @property
    @abstractmethod
    def planned(self) -> int:
        """The approximate number of tokens that the step will add to the target's call."""

    @property
    @abstractmethod
    def step_tokens(self) -> int:
        """Number of tokens that the step adds to the target's call."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """What the step adds to the target's call, each part in its own slot."""

    @abstractmethod
    def was_read(self) -> None:
        """Note that the target has read the parts."""

    def look_aheads(self) -> list[tuple[Shaper, list[int]]]:
        """The look-aheads whose masks verification needs; masks are computed for all texts of a step together."""
        return []

    @abstractmethod
    def verify(self, rows: Logits) -> None:
        """Decide what is kept, by the rows of the parts, float32[rows, vocab]."""

    @abstractmethod
    def emit(self, rows: Logits, timing: Timing, load: KByLoad) -> None:
        """Hand out the tokens that are kept, and the figures of the round."""


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


class FailsAlone:
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
