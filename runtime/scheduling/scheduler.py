"""Choose which texts run, and run the steps of all of them: admit, encode, draft, score, verify, emit.

If the models have encoders, a step first reads the sources of new texts, each source whole in one call. The main part
of a step is one call of the target over the tokens of all running texts: the next piece of a prompt, one token, or the
K + 1 tokens of a text with drafts. A row's logits depend on its own text alone, so each text is the same, bit for bit,
as if it were written alone.
"""

from __future__ import annotations

import time
from collections import abc, deque
from dataclasses import replace
from itertools import accumulate, chain

from mxspec.formats.errors import GenerationError, MxspecError
from mxspec.runtime.models.encoder import together_or_apart
from mxspec.runtime.models.read_beginning import ReadBeginning
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slots
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.policy.costs import Costs
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import prepare
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.scheduling.scheduled_text import FailsAlone, ScheduledText, draft_piece
from mxspec.runtime.scheduling.tally import Timing

KIB = 1 << 10
FIRST_CHUNK = 16  # tokens of a prompt in a step that other texts wait for, while costs are unknown

DraftRead = tuple[ScheduledText, int]  # a text, and the number of its tokens that the draft reads


class Scheduler:
    """Owns the slots, and is the only caller of the sessions; only one thread may use it.

    `prefill_ms` is how much longer a step may take to read prompts while other texts wait for their next token.
    `growth` is the cost of a call of the target by its tokens, in any unit, where it is known beforehand.
    """

    def __init__(
        self,
        target: Session,
        draft: Session | None,
        k_max: int,
        prefill_ms: float,
        cache_memory: int | None = None,
        growth: abc.Callable[[int], float] | None = None,
    ) -> None:
        self.load = KByLoad(k_max, score=Costs(growth))
        self._target, self._draft = target, draft
        self._prefill_seconds = prefill_ms / 1e3
        self.slots = Slots(target.slots, [target] if draft is None else [target, draft], cache_memory)
        self._beyond = k_max + 1  # rows of a round that are rolled back
        self._encode_costs = Costs()
        self._waiting: deque[ScheduledText] = deque()
        self._running: list[ScheduledText] = []

    def add(self, samples: abc.Sequence[ScheduledText]) -> None:
        """Append the samples of one prompt to the queue; all but the first wait until the prompt has been read."""
        first, *others = samples
        first.followers = list(others)
        self._waiting.append(first)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """Number of prompts that wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of texts that have slots."""
        return len(self._running)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._target.slots - sum(len(text.slots) for text in self._running)

    def step(self) -> None:
        """Run one step for all running texts."""
        began = time.perf_counter()
        self._end_cancelled()
        self._admit(began)
        if not self._running:
            return
        self._encode()
        encoded = time.perf_counter()
        try:
            self._step(began, encoded)
        except Exception as error:  # after a failed call of a model, its cache entries cannot be trusted
            self._fail_running(error)
        self._retire()

    def end_all(self, error: BaseException | None = None) -> None:
        """End every text now, with `error` or as cancelled."""
        while self.busy:
            for text in (*self._running, *self._waiting):
                if text.ended:
                    continue
                if error is None:
                    text.finish("cancelled")
                else:
                    text.fail(error)
            self._drop_ended()

    # --- admit ---

    def _end_cancelled(self) -> None:
        while cancelled := [text for text in chain(self._running, self._waiting) if text.cancelled]:
            for text in cancelled:
                text.finish("cancelled")
            self._drop_ended()  # may append waiting samples, which are cancelled too

    def _admit(self, now: float) -> None:
        """Admit waiting texts in the order of their arrival, as long as slots are free."""
        while self._waiting:
            text = self._waiting[0]
            settings = text.settings
            most = self.most_tokens(settings)
            taken = self.slots.take(settings.prompt, settings.cache_key, settings.source, text.slots_needed, most)
            if taken is None:
                return
            self._waiting.popleft()
            self._running.append(text)
            with FailsAlone(text):
                text.start(taken, now, self.load)
            if text.ended:
                self._retire()

    def most_tokens(self, settings: ChosenSettings) -> int:
        """Most tokens that a text with these settings will have in its slot."""
        return min(len(settings.prompt) + settings.max_new_tokens + self._beyond, self._target.capacity)

    def check_memory(self, text: ScheduledText) -> None:
        """Raise GenerationError for a text that would not fit into the caches' memory alone."""
        settings, limit = text.settings, self.slots.limit
        needed = text.slots_needed * self.slots.bytes_of(self.most_tokens(settings), settings.source)
        if limit is not None and needed > limit:
            raise GenerationError(
                "cache memory",
                f"a prompt of {len(settings.prompt):,} tokens and {settings.max_new_tokens:,} new ones "
                f"may take {needed // KIB:,} KiB, and the engine has {limit // KIB:,}; ask for fewer max_new_tokens",
            )

    def beginning(self, tokens: abc.Sequence[int], cache_key: str) -> ReadBeginning | None:
        """What slots hold of a text that begins with these tokens, if they hold all of it."""
        slot = self.slots.holding(tokens, cache_key)
        if slot is None:
            return None
        rows = self._target.rows(slot.index, len(tokens))
        read = self.slots.draft_length(slot, len(tokens))
        if self._draft is None or self._draft.translation is not None or not read:
            return ReadBeginning(list(tokens), cache_key, rows)
        return ReadBeginning(list(tokens), cache_key, rows, read, self._draft.rows(slot.index, read))

    def adopt(self, beginning: ReadBeginning) -> None:
        """Give an idle slot what was read of a beginning. Raises MxspecError where none is idle, or rows do not fit."""
        tokens, after = beginning.tokens, [*beginning.tokens, -1]  # the last token of a prompt is never taken over
        if len(tokens) > self._target.capacity:
            raise MxspecError(f"{len(tokens):,} tokens, more than the context length of {self._target.capacity:,}")
        if beginning.draft_length > (len(tokens) if self._draft is not None else 0):
            raise MxspecError(f"{beginning.draft_length:,} tokens that a draft has read, of {len(tokens):,}")
        if self.slots.holding(tokens, beginning.cache_key) is not None:
            return
        taken = self.slots.take(after, beginning.cache_key, most=len(tokens))
        if taken is None:
            raise MxspecError("no slot is idle, or the cache memory is too small")
        (slot,) = taken
        try:
            self.slots.release(slot)
            self._target.put_rows(slot.index, beginning.target, len(tokens))
            if self._draft is not None and beginning.draft_length:
                self._draft.put_rows(slot.index, beginning.draft, beginning.draft_length)
        except Exception:
            self.slots.forget(slot)
            raise
        else:
            slot.tokens, slot.target_length, slot.draft_length = list(tokens), len(tokens), beginning.draft_length
        finally:
            self.slots.free(slot)

    def _drop_ended(self) -> None:
        """Drop every text that has ended: waiting ones, too, which no step ends, but a cancellation does."""
        ended = [text for text in self._waiting if text.ended]
        if ended:
            self._waiting = deque(text for text in self._waiting if not text.ended)
            self._bring_followers(ended)
        self._retire()

    def _retire(self) -> None:
        """Free the slots of texts that have ended, and queue the samples that waited for their prompt to be read."""
        self._bring_followers(self._running)
        for text in self._running:
            for slot in text.slots if text.ended else ():
                self.slots.free(slot)
        self._running = [text for text in self._running if not text.ended]

    def _bring_followers(self, texts: abc.Sequence[ScheduledText]) -> None:
        """Queue the samples that waited for these texts to read their prompt, in front of all."""
        for text in reversed(texts):  # each is put in front, the first last
            if text.followers and (text.ended or not text.reading):
                self._waiting.extendleft(reversed(text.followers))
                text.followers = []

    def _fail_running(self, error: Exception) -> None:
        for text in self._running:
            for slot in text.slots:
                self.slots.forget(slot)
            if not text.ended:
                text.fail(error)

    # --- encode ---

    def _encode(self) -> None:
        """The target's encoder reads the sources of new texts in one call, in the order of their arrival.

        A source that several texts wait for is read once. The draft's encoder reads a source when it first drafts.
        """
        waiting = [text for text in self._running if text.slots[0].target_unencoded]
        if not waiting:
            return
        chosen: dict[tuple[str, tuple[int, ...]], list[ScheduledText]] = {}
        left = self._source_budget(others=len(waiting) < len(self._running))
        for text in waiting:
            source = text.settings.source
            key = text.settings.cache_key, source
            if key not in chosen and chosen and len(source) > left:
                break
            if key not in chosen:
                left -= len(source)
            chosen.setdefault(key, []).append(text)
        groups = list(chosen.values())
        for texts, error in zip(groups, together_or_apart(self._encode_together, groups), strict=True):
            if error is None:
                continue
            for text in texts:
                self.slots.forget(text.slots[0])
                text.fail(error)

    def _encode_together(self, groups: abc.Sequence[abc.Sequence[ScheduledText]]) -> None:
        """Read one source for each group in one call of the encoder; all texts of a group share their source."""
        began = time.perf_counter()
        sources = [(texts[0].slots[0].index, texts[0].settings.source) for texts in groups]
        self._target.encode(sources)
        seconds = time.perf_counter() - began
        self._encode_costs.add(sum(len(source) for _, source in sources), seconds)
        for first, *others in groups:
            for text in (first, *others):
                if text is not first:
                    self._target.copy_source(first.slots[0].index, text.slots[0].index)
                text.slots[0].target_encoded = True
                text.tally.encode_seconds = seconds

    def _source_budget(self, *, others: bool) -> int:
        """Source tokens that a call may read: the longest source, or fewer if `others` wait for their next token."""
        most = self._target.source_capacity
        if not others:
            return most
        costs = self._encode_costs
        return costs.affordable(0, self._prefill_seconds, most) if costs.sizes else 0

    # --- plan ---

    def _plan(self) -> tuple[list[ScheduledText], list[DraftRead], bool]:
        """Plan a round for every text that has begun, and pieces of prompts up to the budget.

        Returns the texts that take part in the step, what drafts read of prompts at the same time, and whether no text
        waits for its draft: KByLoad learns from such a step.
        """
        going_on: list[ScheduledText] = []
        late: list[ScheduledText] = []
        for kind, texts in _by_kind(text for text in self._running if not text.reading).items():
            planned, waiting = kind.plan(texts, self.load, self.slots)
            going_on += planned
            late += waiting
        reading = [t for t in self._running if t.reading and not t.ended and not t.slots[0].target_unencoded]
        pieces: list[ScheduledText] = []
        draft_reads: list[DraftRead] = []
        if reading:
            left = self._budget(self.load.score, sum(text.planned for text in going_on))
            pieces, draft_reads = self._pieces(reading, left)
        if late:
            left = self._budget(self.load.draft_read, 0 if not going_on else sum(count for _, count in draft_reads) + 1)
            draft_reads += self._late_reads(late, left)
        return [*going_on, *pieces], draft_reads, bool(going_on) and not late

    def _late_reads(self, late: abc.Sequence[ScheduledText], left: int) -> list[DraftRead]:
        """The next pieces of texts that their draft has to read before it can guess."""
        reads: list[DraftRead] = []
        for text in late:
            with FailsAlone(text):
                count = draft_piece(text, left) if left > 0 else 0
                left -= count
                if count:
                    reads.append((text, count))
        return reads

    def _budget(self, costs: Costs, tokens: int) -> int:
        """Prompt tokens that a call may read beside the `tokens` of texts being written, by the cost of calls."""
        most = self._target.chunk
        if tokens == 0:
            return most
        if costs.sizes == 0:
            return min(FIRST_CHUNK, most)
        return costs.affordable(tokens, self._prefill_seconds, most)

    def _pieces(self, reading: abc.Sequence[ScheduledText], left: int) -> tuple[list[ScheduledText], list[DraftRead]]:
        """The next pieces of prompts, in the order of their arrival; with a fixed K the draft reads them too."""
        pieces: list[ScheduledText] = []
        draft_reads: list[DraftRead] = []
        for text in reading:
            if left <= 0:
                break
            with FailsAlone(text):
                unread = len(text.unread)
                lag = text.draft_lag if text.drafts_at_once else 0  # most drafters have nothing to read
                if lag > unread:  # the draft had read less of a shared prefix than the target
                    count = min(draft_piece(text, left), lag - unread)
                else:
                    count = min(unread, left)
                    text.plan_piece(count)
                    pieces.append(text)
                if lag:
                    draft_reads.append((text, count))
                left -= count
        return pieces, draft_reads

    # --- draft, score, verify, emit ---

    def _step(self, began: float, encoded: float) -> None:
        planned, draft_reads, as_chosen = self._plan()
        draft_calls = self._guess(planned, draft_reads)
        texts = [text for text in planned if not text.ended]
        drafted = time.perf_counter()
        if not texts:
            return
        logits = self._score(texts)
        timing = Timing(began, encoded, drafted, time.perf_counter(), self._target.experts_touched)
        prepare([look_ahead for text in texts for look_ahead in text.look_aheads()])
        for text, rows in zip(texts, logits, strict=True):
            if text.scored:
                with FailsAlone(text):
                    text.verify(rows)
                    text.emit(rows, timing, self.load)
        tokens = sum(text.step_tokens for text in texts)
        seconds = time.perf_counter() - drafted
        if as_chosen:
            self.load.observe(tokens, seconds, draft_calls)
        else:
            self.load.score.add(tokens, seconds)

    def _guess(self, planned: list[ScheduledText], draft_reads: list[DraftRead]) -> list[tuple[str, int, float]]:
        """Let drafters read and guess; return their calls in this step."""
        calls: list[tuple[str, int, float]] = []
        scored = sum(text.scored for text in planned)
        reads = [(text, count) for text, count in draft_reads if not text.ended]
        concerned = [*(text for text, _ in reads), *(text for text in planned if not text.ended)]
        for kind in _by_kind(concerned):
            own = [text for text in planned if type(text) is kind and not text.ended]
            calls += kind.draft([read for read in reads if type(read[0]) is kind], own, self.load, scored)
        return calls

    def _score(self, texts: abc.Sequence[ScheduledText]) -> list[Logits]:
        """Call the target once; return the rows of each text."""
        of_each = [text.parts() for text in texts]
        parts = [part for parts in of_each for part in parts]
        if not any(part.rows for part in parts):
            parts[0] = replace(parts[0], rows=1)  # a call has at least one row
        logits = self._target.run(parts)
        for text in texts:
            text.was_read()
        counts = [sum(part.rows for part in parts) for parts in of_each]
        return [logits[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def _by_kind(texts: abc.Iterable[ScheduledText]) -> dict[type[ScheduledText], list[ScheduledText]]:
    kinds: dict[type[ScheduledText], list[ScheduledText]] = {}
    for text in texts:
        kinds.setdefault(type(text), []).append(text)
    return kinds
