"""Whole sampled texts of eight words against the exact probability of each, in every way to sample and to draft.

They run in the real scheduler, 32 at a time. The seeds are fixed, so a test passes always or never; a right engine
fails it once in a million choices of them. Numbers that are used twice show in whole texts, not in single tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tokenizers import Tokenizer, decoders, models

from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import ProposalKind, Wanted
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.text_draft import TextDraft
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Draws, Purpose
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.verifiers.verify import VERIFIERS
from tests.broken import verify_with_a_late_bonus
from tests.runtime.verifiers.conftest import CountTexts
from tests.runtime.verifiers.exact import Logits, Probs, number_of, surprise, text_probabilities

WORDS, LENGTH, PROMPT = 8, 4, [0, 1]
ORDER = 2  # words that the next one depends on
SAMPLES = 1100
FALSE_ALARM = 1e-6
TARGET_LEAD, DRAFT_LEAD = 1.4, 6.0  # spread of the logits of two words, which temperatures bring about
MonkeyPatch = pytest.MonkeyPatch


def rows(seed: int) -> Probs:
    """Logits float64[contexts, words] after every text of up to ORDER words."""
    contexts = sum(WORDS**length for length in range(ORDER + 1))
    return 1.5 * np.random.default_rng(seed).standard_normal((contexts, WORDS))


TARGET = rows(1)
DRAFT = 0.8 * TARGET + 0.6 * rows(2)


def after(table: Probs) -> Logits:
    """What follows a text after the prompt, which does not matter."""

    def logits(text: tuple[int, ...]) -> Any:
        last = text[len(PROMPT) :][-ORDER:]
        shorter = (WORDS ** len(last) - 1) // (WORDS - 1)
        return table[shorter + number_of(last, WORDS)].astype(np.float32)

    return logits


PLAIN, CUT = Sampling(1.0), Sampling(1.0, top_k=6)
PENALISED = Sampling(1.0, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3)


@dataclass(frozen=True)
class Way:
    """A way to sample the words."""

    verifier: str
    sampling: Sampling = PLAIN
    drafter: str = "model"
    k: int = 2
    proposal: ProposalKind = "sampled"
    draft_temperature: float | None = None
    samples: int = SAMPLES
    tokens: DraftTokens | None = None


def lead(table: Probs, pair: tuple[int, int]) -> tuple[float, float]:
    """Mean and spread of how far the logit of one word is above the other's."""
    found = table[:, pair[0]] - table[:, pair[1]]
    return float(found.mean()), float(found.std())


def two_words() -> Way:
    """Two words that both models find about as likely, and a draft that is far too sure of its own.

    Blocks that are cut show here whether their random numbers are used again: what is drafted is discarded often, and
    few texts are possible, so that each comes up often.
    """

    def bias(pair: tuple[int, int]) -> float:
        leads = lead(TARGET, pair), lead(DRAFT, pair)
        return sum(abs(mean) / spread for mean, spread in leads)

    pair = min(itertools.combinations(range(WORDS), 2), key=bias)
    others = {word: -math.inf for word in range(WORDS) if word not in pair}
    sampling = Sampling(lead(TARGET, pair)[1] / TARGET_LEAD, logit_bias=others)
    sharp = lead(DRAFT, pair)[1] / DRAFT_LEAD
    return Way("block", sampling, k=3, draft_temperature=sharp, samples=3 * SAMPLES)


KEPT = np.array([0, 2, 3, 5, 7])  # words of which the draft has logits
TRIMMED = DraftTokens(KEPT, WORDS)
# A draft with a tokenizer of its own: a text begins with 3, and word 6, which it lacks, is its tokens 12 and 13.
OWN_IDS = ([4], [5], [9], [8], [7], [11], [12, 13], [10])
FOREIGN = DraftTokens(
    KEPT,
    reads=14,
    begins=np.cumsum([0, *map(len, OWN_IDS)]).astype(np.int32),
    ids=np.array(list(itertools.chain(*OWN_IDS)), np.int32),
    start=(3,),
)


def of_kept(text: tuple[int, ...]) -> Any:
    """The draft's logits of the words that it keeps."""
    return after(DRAFT)(text)[KEPT]


def of_own(text: tuple[int, ...]) -> Any:
    """The same, after a text of the draft's own tokens."""
    assert text[0] == 3
    first = {own[0]: word for word, own in enumerate(OWN_IDS)}
    words = tuple(first[token] for token in text[1:] if token != 13)
    assert text == (3, *itertools.chain.from_iterable(OWN_IDS[word] for word in words))
    return of_kept(words)


# A draft that writes text: word 6 is two of its tokens, and it has tokens of several words, one of which ends amid one.
SPELLED = ("a", "b", "c", "d", "e", "f", "gi", "h")
OWN_TEXTS = {4: "a", 5: "b", 9: "c", 8: "d", 7: "e", 11: "f", 12: "g", 13: "i", 10: "h", 14: "ab", 15: "hgi", 6: "cg"}
WRITES = DraftTokens(
    np.array([SPELLED.index(OWN_TEXTS[own]) if OWN_TEXTS.get(own) in SPELLED else -1 for own in range(16)]),
    16,
    FOREIGN.begins,
    FOREIGN.ids,
    FOREIGN.start,
    tuple(OWN_TEXTS.get(own, "").encode() for own in range(16)),
)


def of_text(text: tuple[int, ...]) -> Any:
    """The draft's logits of its own tokens: those of the words that they begin with, amid a word only of its rest."""
    assert text[0] == 3
    spelled = "".join(OWN_TEXTS[own] for own in text[1:])
    amid, words = spelled.endswith("g"), tuple("abcdefgh".index(letter) for letter in spelled.replace("i", ""))
    row = after(DRAFT)(words[: len(words) - amid])
    first = {own: "i" if amid else given[0] for own, given in OWN_TEXTS.items()}
    own = [row["abcdefgh".index(first[own])] if first.get(own, "i") != "i" else -9.0 for own in range(16)]
    return np.array([9.0 if amid and token == 13 else logit for token, logit in enumerate(own)], np.float32)


def speller() -> Tokenizer:
    """The target's tokenizer: the longest words that there are."""
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in SPELLED]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


WAYS = {
    "mrs": Way("mrs", CUT),
    "mrs with penalties": Way("mrs", PENALISED),
    "mrs with a greedy proposal": Way("mrs", proposal="greedy"),
    "match": Way("match", CUT),
    "block": Way("block", k=3),
    **{f"mrs, drafter {name}": Way("mrs", drafter=name) for name in make_drafters(WORDS, None) if name != "none"},
    "mrs, drafter hierarchical": Way("mrs", drafter="hierarchical"),
    "block, a sure draft of two words": two_words(),
    "mrs, trimmed": Way("mrs", CUT, tokens=TRIMMED),
    "mrs with penalties, trimmed": Way("mrs", PENALISED, tokens=TRIMMED),
    "block, trimmed": Way("block", k=3, tokens=TRIMMED),
    "match, other tokens": Way("match", tokens=FOREIGN),
    "mrs, other tokens": Way("mrs", tokens=FOREIGN),
    "mrs, other tokens, drafter hierarchical": Way("mrs", drafter="hierarchical", tokens=FOREIGN),
    "match, text": Way("match", CUT, k=3, tokens=WRITES),
    "mrs, text": Way("mrs", PENALISED, k=3, tokens=WRITES),
    "block, text": Way("block", k=3, tokens=WRITES),
}


def surprise_of(count_texts: CountTexts, way: Way) -> float:
    settings = {field.name: getattr(way.sampling, field.name) for field in fields(Sampling) if field.name != "seed"}
    of_draft = after(DRAFT) if way.tokens is None else of_own if way.tokens.foreign else of_kept
    if way.tokens is WRITES:
        of_draft = of_text
    counts = count_texts(
        after(TARGET),
        of_draft,
        PROMPT,
        LENGTH,
        range(way.samples),
        k=way.k,
        tokens=way.tokens,
        make=lambda draft: make_drafters(WORDS, TextDraft(draft, speller()) if way.tokens is WRITES else Draft(draft))[
            way.drafter
        ],
        verifier=way.verifier,
        proposal=way.proposal,
        draft_temperature=way.draft_temperature,
        **settings,
    )
    return surprise(counts, way.samples * text_probabilities(after(TARGET), PROMPT, way.sampling, LENGTH))


@pytest.mark.parametrize("name", WAYS)
def test_texts_are_as_likely_as_the_target_makes_them(count_texts: CountTexts, name: str) -> None:
    assert surprise_of(count_texts, WAYS[name]) > FALSE_ALARM


# --- engines that are broken where only whole texts show it ---


def number_used_twice(patch: MonkeyPatch) -> None:
    """A token is drawn and judged by the same number."""
    uniform = Draws.uniform
    patch.setattr(Draws, "uniform", lambda draws, place, purpose: uniform(draws, place, Purpose.DRAFT))


def bonus_one_late(patch: MonkeyPatch) -> None:
    patch.setitem(VERIFIERS, "mrs", replace(VERIFIERS["mrs"], verify=verify_with_a_late_bonus))


def whole_vocabulary_said(patch: MonkeyPatch) -> None:
    """A token is drawn from the draft's few, and said to be drawn from all of its distribution, not renormalised."""
    add = Wanted.add_row

    def add_row(want: Wanted, row: Any, origin: str, ids: Any = None) -> bool:
        added = add(want, row, origin, ids)
        drawn, rest = want.proposal.distributions[-1], np.setdiff1d(np.arange(WORDS), ids)
        said = np.zeros(WORDS)
        said[drawn.ids], said[rest] = drawn.weights, drawn.total / len(rest)
        want.proposal.distributions[-1] = Distribution.of(said)
        return added

    patch.setattr(Wanted, "add_row", add_row)


def said_to_be_drawn(patch: MonkeyPatch) -> None:
    """A written text is proposed as if each word had been as likely as another."""
    patch.setattr(Distribution, "point", lambda token: Distribution.of(np.ones(WORDS)))


def block_keyed_by_position(patch: MonkeyPatch) -> None:
    patch.setitem(VERIFIERS, "block", replace(VERIFIERS["block"], fresh=False))


def stops_after_unlikely_tokens(patch: MonkeyPatch) -> None:
    """A round ends before a token that the draft thinks unlikely: what was drawn decides whether it is drafted."""
    add = Wanted._add

    def confident(want: Wanted, token: int, drawn_from: Distribution | None, origin: str) -> None:
        if drawn_from is not None and drawn_from.probability(token) < 0.3:
            return
        add(want, token, drawn_from, origin)

    def propose(drafter: ModelDrafter, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            unread = [*want.tokens[want.slot.draft_length :], *want.proposal.tokens]
            for _ in range(want.k):
                row = drafter.draft.run([(want.slot, unread, 1)])[0]
                count = len(want.proposal.tokens)
                want.add_row(row, drafter.name)
                if len(want.proposal.tokens) == count:
                    break
                unread = want.proposal.tokens[-1:]
        return []

    patch.setattr(Wanted, "_add", confident)
    patch.setattr(ModelDrafter, "propose", propose)


@pytest.mark.parametrize(
    ("sabotage", "name"),
    [
        (number_used_twice, "mrs"),
        (bonus_one_late, "mrs"),
        (stops_after_unlikely_tokens, "block"),
        (whole_vocabulary_said, "mrs, trimmed"),
        (said_to_be_drawn, "block, text"),
        (block_keyed_by_position, "block, a sure draft of two words"),
    ],
)
def test_a_broken_engine_is_caught(
    count_texts: CountTexts, monkeypatch: MonkeyPatch, sabotage: Callable[[MonkeyPatch], None], name: str
) -> None:
    sabotage(monkeypatch)
    assert surprise_of(count_texts, WAYS[name]) < FALSE_ALARM


# --- what they are held against ---


def test_probabilities_of_texts_add_up() -> None:
    bias = dict.fromkeys(range(2, WORDS), -math.inf)
    found = text_probabilities(after(TARGET), PROMPT, Sampling(0.7, logit_bias=bias), 3)
    assert found.sum() == pytest.approx(1)
    for number, text in enumerate(itertools.product(range(WORDS), repeat=3)):
        assert (found[number] > 0) == (max(text) < 2)
        assert number_of(text, WORDS) == number
    first = np.exp((TARGET[0, :2] - TARGET[0, :2].max()) / 0.7)
    assert found.reshape(WORDS, -1).sum(axis=1)[:2] == pytest.approx(first / first.sum())


def test_counts_are_compared_with_expected_counts() -> None:
    rng = np.random.default_rng(3)
    chances = rng.dirichlet([0.4] * 300)
    found = [surprise(rng.multinomial(2000, chances).astype(float), 2000 * chances) for _ in range(300)]
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    wrong = 0.8 * chances + 0.2 * rng.permutation(chances)
    assert surprise(rng.multinomial(2000, wrong).astype(float), 2000 * chances) < 1e-6
    assert surprise(np.array([1.0, 1.0]), np.array([2.0, 0.0])) == 0
