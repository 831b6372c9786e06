"""One answer, round by round: draft, score, verify, emit, roll back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from mxspec.runtime.choose_k import KChooser
from mxspec.runtime.drafters.drafter import Drafter, Proposal
from mxspec.runtime.events import Event, Finished, FinishReason, Round, Statistics, Token
from mxspec.runtime.model import Model
from mxspec.runtime.sampling.randomness import Purpose, uniform
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits, argmax_tokens, shape
from mxspec.runtime.statistics import Tally
from mxspec.runtime.text import TextStream
from mxspec.runtime.verifiers.greedy import verify_greedy
from mxspec.runtime.verifiers.mrs import verify_mrs
from mxspec.runtime.verifiers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, checked: the prompt is not empty and fits the context, no k exceeds k_max."""

    prompt: list[int]
    sampling: Sampling
    k: KChooser
    max_new_tokens: int


class Generation(Iterator[Event]):
    """The events of one answer; `statistics` may be asked for at any time, also after an interruption."""

    def __init__(
        self, target: Model, drafter: Drafter, request: Request, tokenizer: Tokenizer, eos_token_ids: Iterable[int]
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._request = request
        self._eos = frozenset(eos_token_ids)
        self._text = TextStream(tokenizer, request.prompt)
        self._tokens = list(request.prompt)  # after the first round, the target has read all of them but the last
        self._tally = Tally(len(request.prompt))
        self._events = self._run()

    def __next__(self) -> Event:
        return next(self._events)

    @property
    def statistics(self) -> Statistics:
        return self._tally.statistics()

    def _run(self) -> Iterator[Event]:
        """The rounds, until something ends the text. The first one drafts nothing: its call reads the prompt."""
        began = time.perf_counter()
        self._target.begin(self)
        self._drafter.prefill(self._tokens)
        self._tally.draft_prefill_seconds = time.perf_counter() - began
        reason: FinishReason | None = None
        while reason is None:
            began = time.perf_counter()
            proposal = self._drafter.propose(self._tokens, self._clamped_k(), self._request.sampling)
            drafted = time.perf_counter()
            logits = self._score(proposal)
            scored = time.perf_counter()
            verdict = self._verify(logits, proposal)
            new, reason = self._cut([*proposal.tokens[: verdict.accepted], verdict.next_token])
            self._keep(new)
            counts = len(proposal.tokens), min(verdict.evaluated, len(new)), min(verdict.accepted, len(new))
            tokens = [Token(token, self._text.push(token), i < verdict.accepted) for i, token in enumerate(new)]
            ended = time.perf_counter()  # what the reader does with the events is not our time
            done = Round(*counts, len(new), drafted - began, scored - drafted, ended - began)
            if self._tally.rounds:  # the first one's time is that of the prompt
                self._request.k.observe(done)
            self._tally.rounds.append(done)
            yield from tokens
            yield done
        yield Finished(reason, self.statistics, self._text.finish())

    @property
    def _emitted(self) -> int:
        return len(self._tokens) - len(self._request.prompt)

    def _clamped_k(self) -> int:
        """How many tokens to draft: none before the first token, and never past the context or the tokens wanted."""
        if not self._emitted:
            return 0
        length = len(self._tokens)
        wanted = self._request.max_new_tokens - self._emitted - 1
        room = min(wanted, self._target.capacity - length, self._drafter.limit(length))
        return max(min(self._request.k.next_k(), room), 0)

    def _score(self, proposal: Proposal) -> Logits:
        """One call of the target over what it has not read and all drafted tokens: float32[K + 1, vocab]."""
        self._target.require(self)
        unread = self._tokens[self._target.length :] + proposal.tokens
        return self._target.append(unread, len(proposal.tokens) + 1)

    def _verify(self, logits: Logits, proposal: Proposal) -> Verdict:
        sampling = self._request.sampling
        if sampling.greedy:
            return verify_greedy(argmax_tokens(logits), proposal.tokens)
        first = len(self._tokens)
        return verify_mrs(
            lambda i: shape(logits[i], sampling),
            proposal.distributions,
            proposal.tokens,
            lambda i: uniform(sampling.seed, 0, first + i, Purpose.ACCEPT),
            lambda i: uniform(sampling.seed, 0, first + i, Purpose.RESAMPLE),
        )

    def _cut(self, new: list[int]) -> tuple[list[int], FinishReason | None]:
        """The new tokens up to an end of text, and why the text ends behind them, if it does."""
        end = next((i for i, token in enumerate(new) if token in self._eos), None)
        if end is not None:
            return new[: end + 1], "eos"
        if self._emitted + len(new) >= self._request.max_new_tokens:
            return new, "max_new_tokens"
        if len(self._tokens) + len(new) > self._target.capacity:
            return new, "context_end"
        return new, None

    def _keep(self, new: list[int]) -> None:
        """The sequence grows by the new tokens; both models forget what was drafted beyond. The last is yet unread."""
        self._tokens += new
        known = len(self._tokens) - 1
        self._target.rollback(min(self._target.length, known))
        self._drafter.rollback(known)
