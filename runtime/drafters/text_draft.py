"""A draft model that writes text in its own tokens (string-level exact match, SLEM; Timor et al. 2025, algorithm 2).

What the target's tokenizer makes of the text is proposed as tokens that are certain, whatever the draft was drawn from:
so any verifier may judge them. The draft keeps in its cache what it has written itself, up to the last place where a
token of the target ends as well; what follows there it reads in the target's cuts.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate, pairwise
from math import prod

import numpy as np
from tokenizers import Tokenizer

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.stopping import Judged, Stopping, peak_probability
from mxspec.runtime.models.draft_tokens import Translation
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.shape import Logits, argmax_tokens
from mxspec.runtime.text.detokenize import detokenizer
from mxspec.runtime.text.encoding import encoder_of
from mxspec.runtime.text.untrusted_tokenizer import guarded

MOST_STEPS = 4  # tokens that a draft writes for each that is wanted, at most
# A round ends with the last token that is wanted, though more text may change it: writing on until it is sure would
# keep a little more, and take about one more call of the draft.


class TextDraft(Draft):
    """The draft, beside the tokenizer of the target."""

    def __init__(self, session: Session, tokenizer: Tokenizer) -> None:
        super().__init__(session)
        assert session.texts is not None, "a draft that writes text"
        assert session.head_ids is not None, "a draft with a tokenizer of its own"
        self.continuation = Continuation(tokenizer)
        self.texts, self.partners = session.texts, session.head_ids
        # The token of the target whose noise each of its own shares, or a number of its own.
        self.noise_of = np.where(self.partners >= 0, self.partners, -1 - np.arange(len(self.partners)))

    def rewind(self, slot: Slot) -> None:
        """Forget what was read after the last place of a text where a token of both ends; all if windows passed it."""
        length = self._translation.agreed(slot.index, slot.draft_length)
        slot.draft_length = length if self.session.goes_on(slot.index, length) else 0

    def has_room(self, slot: Slot, own: Sequence[int]) -> bool:
        """Whether the slot's cache holds these tokens of the draft's own after what it has read."""
        return self._entries(slot) + len(own) <= self.session.capacity

    def write(self, written: Sequence[tuple[Slot, Sequence[int]]]) -> Logits:
        """Read the last of the draft's own tokens after each text, the others of which it has read; a row for each."""
        return self.session.run_head(
            [Part(slot.index, self._entries(slot) + len(own) - 1, own[-1:], 1, written=True) for slot, own in written]
        )

    def keep(self, slot: Slot, ends: Sequence[int | None]) -> None:
        """Note what was proposed after a text: after how many of the draft's own tokens each token ends, if it does."""
        slot.draft_length = self._translation.write(slot.index, slot.draft_length, ends)

    def _entries(self, slot: Slot) -> int:
        return self._translation.entries(slot.index, slot.draft_length, [])

    @property
    def _translation(self) -> Translation:
        assert self.session.translation is not None, "a draft with a tokenizer of its own"
        return self.session.translation


class TextDrafter(ModelDrafter):
    """The draft model of a bundle, where it writes text; what it has read depends on earlier rounds."""

    repeatable = False

    def __init__(self, draft: TextDraft) -> None:
        super().__init__(draft)
        self._text = draft

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        for _, slot, _ in pieces:
            self._text.rewind(slot)
        super().read(pieces)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        began, draft = time.perf_counter(), self._text
        active = []
        for want in wanted:
            draft.rewind(want.slot)
            unread = [*want.tokens[want.slot.draft_length :], *want.proposal.tokens]
            if draft.can_read(want.slot, want.tokens[want.slot.draft_length :]) and draft.fits(want.slot, unread):
                active.append((_Writing(want, draft, self.stopping(want, want.memory)), unread))
        if not active:
            return []
        writings = writing = [each for each, _ in active]
        logits = draft.run([(each.want.slot, unread, 1) for each, unread in active])
        while True:
            for each, row in zip(writing, logits, strict=True):
                each.add_row(row)
            writing = [each for each in writing if each.goes_on and draft.has_room(each.want.slot, each.own)]
            if not writing:
                break
            logits = draft.write([(each.want.slot, each.own) for each in writing])
            for each in writing:
                each.read = len(each.own)
        places = max([1, *(each.propose(self.name) for each in writings)])
        return [(len(writings), (time.perf_counter() - began) / places)] * places


@dataclass(slots=True)
class _Writing:
    """What the draft writes after one text in a round, and what the target's tokenizer makes of it."""

    want: Wanted
    draft: TextDraft
    stopping: Stopping
    own: list[int] = field(default_factory=list)  # the draft's tokens, and the bytes that end with each
    own_ends: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)  # of a traced text: the probability of the likeliest of each
    read: int = 0  # number of its own tokens that the draft has read
    text: bytes = b""
    tokens: list[int] = field(default_factory=list)  # the target's, and the bytes that end with each
    ends: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether another token is to be written."""
        if self.ended or self.stopping.stopped or len(self.own) >= MOST_STEPS * self.want.k:
            return False
        return len(self.tokens) < self.want.k and self.stopping.worth_a_call

    def add_row(self, row: Logits) -> None:
        """Write the token that a row of the draft gives, if it is likely enough."""
        try:
            own = self._choose(row)
        except GenerationError as error:
            self.want.proposal.errors.append(error)
            self.ended = True
            return
        if not self.stopping.pays(row):
            return
        self.own.append(own)
        if self.want.traced:
            self.chances.append(peak_probability(row))
        if text := self.draft.texts[own]:
            self.text += text
            self.tokens, self.ends = self.draft.continuation.after(self._before, self.text)
            self.own_ends.append(len(self.text))
        else:
            self._end(int(self.draft.partners[own]))

    def propose(self, name: str) -> int:
        """Propose the target's tokens as certain, as far as the text can go on with them; their number."""
        proposal = self.want.proposal
        before = len(proposal.tokens)
        for token in self.tokens[: self.want.k]:
            if not self.want.add(token, Distribution.point(token), name):
                break
        ends = self.ends[: len(proposal.tokens) - before]
        counts = {end: count for count, end in enumerate(self.own_ends[: self.read], 1)}
        self.draft.keep(self.want.slot, [counts.get(end) for end in ends])
        spans = [slice(self._own_at(begin), self._own_at(end - 1) + 1) for begin, end in pairwise((0, *ends))]
        if judged := self.stopping.judged:
            judged[:] = [min(judged[span], key=_level) for span in spans]
        if self.want.traced and self.want.choice.greedy_text:
            proposal.confidences.update({place: prod(self.chances[span]) for place, span in enumerate(spans, before)})
        return len(ends)

    def _choose(self, row: Logits) -> int:
        """The draft's likeliest token, or one drawn by the noise that the target's choice has, too."""
        choice = self.want.choice
        if choice.likeliest or not choice.matched:
            return int(argmax_tokens(row))
        place = len(self.want.proposal.tokens) + len(self.tokens)
        return self.want.shaper.unmasked(row, choice.temperature).race(self.want.draws, place, self.draft.noise_of)

    def _end(self, token: int) -> None:
        """A special token of the draft ends what it writes; it is proposed where the target has it."""
        self.ended = True
        self.own_ends.append(len(self.text) + 1)  # which is no place in the text
        if token >= 0 and self.ends[-1:] == ([len(self.text)] if self.text else []):
            self.tokens = [*self.tokens, token]
            self.ends = [*self.ends, len(self.text) + 1]

    def _own_at(self, place: int) -> int:
        """Which of the draft's tokens has the byte at this place."""
        return bisect_right(self.own_ends, place)

    @property
    def _before(self) -> list[int]:
        return [*self.want.tokens[-WINDOW:], *self.want.proposal.tokens]


def _level(judged: Judged) -> int:
    return judged[1]


WINDOW = 8  # tokens before the text that are encoded with it: how a word is cut depends on what comes before it
_LEADING = bytes(range(0x80, 0xC0))  # bytes within a character


class Continuation:
    """Encodes texts after tokens of the same tokenizer; used by one thread at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises BundleError for a tokenizer whose texts have to be encoded by another process."""
        if encoder_of(tokenizer) is not None:
            raise BundleError(
                "a draft that writes text needs a target whose tokenizer has no expressions of its own; compile the "
                "bundle with --draft-tokens tli"
            )
        self._tokenizer = tokenizer
        self.bytes_of = cache(detokenizer(tokenizer).bytes_of)

    def after(self, before: Sequence[int], text: bytes) -> tuple[list[int], list[int]]:
        """Tokens of `text` after the tokens `before`, and the number of its bytes that end with each of them.

        Where the tokenizer would have cut the end of `before` together with the text, the text is encoded alone. A
        character that is not complete is left out; nothing comes back for a text that the tokenizer changes.
        """
        for window in (before[-WINDOW:], ()):
            found = self._encode(b"".join(map(self.bytes_of, window)).lstrip(_LEADING), text)
            if found is not None:
                return found
        return [], []

    def _encode(self, before: bytes, text: bytes) -> tuple[list[int], list[int]] | None:
        """None where no token ends with `before`."""
        whole = _characters(before + text)
        try:
            with guarded("cannot encode", partial(GenerationError, "tokenizer")):
                ids = self._tokenizer.encode(whole.decode(), add_special_tokens=False).ids
        except GenerationError:
            return None
        pieces = [self.bytes_of(token) for token in ids]
        joined = b"".join(pieces)
        put_before = len(joined) - len(whole)  # some tokenizers put a space in front of every text
        ends = [end - put_before - len(before) for end in accumulate(map(len, pieces), initial=0)]
        if put_before not in (0, 1) or joined[put_before:] != whole or 0 not in ends:
            return None
        first = ends.index(0)
        return ids[first:], ends[first + 1 :]


def _characters(text: bytes) -> bytes:
    """The text up to the first byte that is no part of a whole character."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text
