"""How the tokens of one sequence are chosen: everything between a row of logits and a choice.

In this order, for target and draft alike: bias, penalties, masks (repeated sequences, minimum length, the bundle's
rules about tokens, grammar), temperature, top-k, top-p, min-p, typical-p. Each position is treated as if the drafted
tokens before it were accepted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from mxspec.formats.errors import GenerationError
from mxspec.formats.generation import NO_RULES, GenerationRules
from mxspec.runtime.grammars.mask import TokenMask
from mxspec.runtime.grammars.matcher import Matcher, fill_masks
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.logprobs import raw_logprob
from mxspec.runtime.sampling.processors import History, Repeats
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits, argmax_tokens, check_logits, shape
from mxspec.runtime.sampling.token_rules import TokenRules
from mxspec.runtime.sampling.truncate import Indices


class NoTokenError(GenerationError):
    """Settings or a grammar leave no token that the text can go on with."""


class Shaper:
    """One sequence's choices; `ahead` are the drafted tokens before a position, taken as accepted."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        *,
        vocab_size: int,
        eos: Collection[int],
        min_new_tokens: int = 0,
        grammar: Matcher | None = None,
        rules: GenerationRules = NO_RULES,
        limit: int | None = None,
    ) -> None:
        """`limit`: tokens of the answer at most, where the bundle's `rules` say what it has to end with.

        Raises GenerationError for a bias of a token that the vocabulary does not have.
        """
        beyond = [token for token in sampling.logit_bias if token >= vocab_size]
        if beyond:
            raise GenerationError("logit_bias", f"got token {beyond[0]}, expected ids from 0 to {vocab_size - 1}")
        self.vocab_size = vocab_size
        self._sampling = sampling
        self._bias_ids = np.array(list(sampling.logit_bias), np.int64)
        self._biases = np.array(list(sampling.logit_bias.values()), np.float32)
        self._history = History(sampling, prompt) if sampling.penalised else None
        size = sampling.no_repeat_ngram_size
        self._repeats = Repeats(size, prompt) if size else None
        self._eos = np.array(sorted(token for token in eos if token < vocab_size), np.int64)
        self._barred = min_new_tokens if len(self._eos) else 0  # no end of text before this many tokens
        self._rules = TokenRules(rules, prompt, vocab_size=vocab_size, limit=limit)
        self._emitted = 0
        self.grammar = grammar

    @property
    def plain(self) -> bool:
        """True where nothing touches the logits before the choice, here and at every later position."""
        changed = len(self._bias_ids) or self._history or self._repeats or self.grammar or self._rules.any
        return not changed and self._emitted >= self._barred

    @property
    def complete(self) -> bool:
        """True where the grammar accepts nothing but an end: the text ends here."""
        return self.grammar is not None and self.grammar.complete

    def completed(self, ahead: Sequence[int]) -> bool:
        """Whether the grammar would accept nothing but an end after `ahead`."""
        return self.grammar is not None and self.grammar.completed(ahead)

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted. One by one where `complete` must be seen in time."""
        self._emitted += len(tokens)
        if self._history:
            self._history.keep(tokens)
        if self._repeats:
            self._repeats.keep(tokens)
        self._rules.keep(tokens)
        if self.grammar:
            self.grammar.keep(tokens)

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """The tokens that the grammar forces after those emitted and `ahead`."""
        return self.grammar.forced(ahead) if self.grammar else []

    def process(self, logits: Logits, ahead: Sequence[int] = ()) -> Logits:
        """Bias, penalties and masks on one row float32[vocab]: another row, or the same where none applies."""
        row, mask = self._change(logits, ahead), self._mask(ahead)
        return row if mask is None else mask.apply(row)

    def distribution(
        self,
        logits: Logits,
        ahead: Sequence[int] = (),
        temperature: float | None = None,
        ids: Indices | None = None,
    ) -> Distribution:
        """What a token is drawn from; GenerationError for NaN or infinity, NoTokenError where no token is left.

        With a `temperature` of a draft's own, it is shaped at that one. With `ids` int64[n] in ascending order, the row
        float32[n] has their logits alone, and no other token has any probability.
        """
        if ids is None or self.plain:
            row, kept = self._narrow(logits, ahead, ids)
        else:
            row, kept = self._narrow(self._widened(logits, ids), ahead)
            row, kept = (row[ids], ids) if kept is None else (row, kept)
        return shape(row, self._at(temperature), kept)

    def reshape(self, expected: Distribution, temperature: float | None = None) -> Distribution:
        """A distribution of few tokens at temperature 1, after temperature and truncation, and nothing else.

        Bias, penalties and masks apply to rows of a model only; `allows` says what the text cannot go on with.
        """
        return shape(np.log(expected.weights).astype(np.float32), self._at(temperature), expected.ids)

    def unmasked(self, logits: Logits, temperature: float | None = None) -> Distribution:
        """A row of a model with tokens of its own after temperature and truncation, and nothing else."""
        return shape(logits, self._at(temperature))

    def _at(self, temperature: float | None) -> Sampling:
        """The settings, at a draft's own temperature where it has one."""
        return self._sampling if temperature is None else replace(self._sampling, temperature=temperature)

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Whether grammar, minimum length, the bundle's rules and the text itself let it go on with this token.

        False where the grammar fails: that is an error of the text only once it has come so far.
        """
        if self._emitted + len(ahead) < self._barred and token in self._eos:
            return False
        if self._repeats and token in self._repeats.banned(ahead):
            return False
        if self._rules.any and not self._rules.allows(token, ahead):
            return False
        try:
            mask = self._mask(ahead)
        except GenerationError:
            return False
        return mask is None or mask.allows(token)

    def greedy(self, logits: Logits, ahead: Sequence[int] = (), ids: Indices | None = None) -> int:
        """The likeliest token that is allowed, the lowest id of a tie; `ids` and errors as in `distribution`."""
        if ids is not None and not self.plain:
            logits, ids = self._widened(logits, ids), None
        row, mask = self._change(logits, ahead), self._mask(ahead)
        likeliest = int(row.argmax())
        if np.isfinite(row[likeliest]) and (mask is None or mask.allows(likeliest)):
            return likeliest if ids is None else int(ids[likeliest])
        row, ids = self._narrow(logits, ahead, ids)
        token = int(argmax_tokens(row))
        return token if ids is None else int(ids[token])

    def confidence(self, logits: Logits, token: int, ahead: Sequence[int] = (), ids: Indices | None = None) -> float:
        """The probability of a token of a greedy text: what bias, penalties and masks leave, at temperature 1."""
        row = logits if ids is None else self._widened(logits, ids)
        return math.exp(raw_logprob(self.process(row, ahead), token).logprob)

    def _widened(self, logits: Logits, ids: Indices) -> Logits:
        """A row over the whole vocabulary, of which only the tokens `ids` have logits."""
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[ids] = logits
        return row

    def _narrow(
        self, logits: Logits, ahead: Sequence[int], ids: Indices | None = None
    ) -> tuple[Logits, Indices | None]:
        """The processed row, or only its allowed entries and their ids where these are few.

        A row of few `ids` is given where nothing is to be processed.
        """
        if self.plain:
            return logits, ids
        row, ids, mask = self._change(logits, ahead), None, self._mask(ahead)
        if mask is not None:
            ids = mask.few()
            row = mask.apply(row) if ids is None else row[ids]
        if not len(row) or row.max() == -np.inf:
            self._refuse_empty(logits, ahead)
        return row, ids

    def _change(self, logits: Logits, ahead: Sequence[int]) -> Logits:
        """Bias, penalties, repeated sequences, minimum length and the bundle's rules."""
        barred = self._emitted + len(ahead) < self._barred
        repeated = self._repeats.banned(ahead) if self._repeats else ()
        ruled = self._rules.any
        if not (len(self._bias_ids) or self._history or len(repeated) or barred or ruled):
            return logits
        row = logits.copy()
        row[self._bias_ids] += self._biases
        if self._history:
            self._history.penalise(row, ahead)
        if len(repeated):
            row[repeated] = -np.inf
        if barred:
            row[self._eos] = -np.inf
        if ruled:
            self._rules.apply(row, ahead)
        return row

    def _mask(self, ahead: Sequence[int]) -> TokenMask | None:
        return self.grammar.mask(ahead) if self.grammar else None

    def _refuse_empty(self, logits: Logits, ahead: Sequence[int]) -> None:
        """Raise the error that names what left no token."""
        check_logits(logits)
        biased = logits.copy()
        biased[self._bias_ids] += self._biases
        if biased.max() == -np.inf:
            name = "logit_bias"
        elif self._repeats and np.all(np.isin(np.flatnonzero(biased > -np.inf), self._repeats.banned(ahead))):
            name = "no_repeat_ngram_size"
        elif self._rules.any and self._rules.leave_none_of(np.flatnonzero(biased > -np.inf), ahead):
            name = "suppress_tokens"
        elif self._change(logits, ahead).max() == -np.inf:
            name = "min_new_tokens"
        else:
            name = "grammar"
        raise NoTokenError(
            name, f"leaves no token at position {self._emitted + len(ahead)} of the answer, expected at least one"
        )


def prepare(jobs: Sequence[tuple[Shaper, Sequence[int]]]) -> None:
    """Compute in parallel the masks of all positions from the emitted tokens to the end of each look-ahead."""
    fill_masks([(shaper.grammar, ahead) for shaper, ahead in jobs if shaper.grammar])
