"""Engines that are broken in ways known from the wild: each is caught by `speccheck lossless` itself.

What shows in whole texts alone is in tests/runtime/verifiers/test_whole_texts.py.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from mxspec.evaluate.lossless.effort import EFFORTS, Effort
from mxspec.evaluate.speccheck import main
from mxspec.runtime.drafters.drafter import Choice
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Draws, Purpose
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.scheduling.text import Text
from mxspec.runtime.verifiers import verify
from mxspec.runtime.verifiers.verify import VERIFIERS, Scored, Verdict, verify_mrs
from tests.broken import unprocessed_draft

Logits = NDArray[np.float32]
MonkeyPatch = pytest.MonkeyPatch
Sabotage = Callable[[MonkeyPatch], None]


def _verify(patch: MonkeyPatch, name: str, verify: Callable[[Scored], Verdict]) -> None:
    patch.setitem(VERIFIERS, name, replace(VERIFIERS[name], verify=verify))


# --- caches and slots ---


def row_depends_on_its_number(patch: MonkeyPatch) -> None:
    """The later rows of a call are rounded in another order."""
    run = Session.run

    def rounded(self: Session, parts: Sequence[Part]) -> Logits:
        logits = run(self, parts)
        logits[4:] *= np.float32(1 + 2**-23)
        return logits

    patch.setattr(Session, "run", rounded)


def stale_cache_row(patch: MonkeyPatch) -> None:
    """The first of several scored tokens leaves its cache entry as it was."""
    run = Session.run

    def stale(self: Session, parts: Sequence[Part]) -> Logits:
        before = [
            (cache, part, cache[part.slot, :, part.past].copy())
            for cache in self.caches.values()
            for part in parts
            if part.past and part.rows > 1
        ]
        logits = run(self, parts)
        for cache, part, entry in before:
            cache[part.slot, :, part.past] = entry
        return logits

    patch.setattr(Session, "run", stale)


def rollback_one_short(patch: MonkeyPatch) -> None:
    """One entry of what was rejected stays, and all that follows stands one place late."""
    rollback = Slot.rollback
    patch.setattr(Slot, "rollback", lambda slot, length: rollback(slot, length + 1))
    unread = property(lambda text: text.tokens[min(text.slot.target_length, len(text.tokens) - 1) :])
    patch.setattr(Text, "unread", unread)


def slot_mixed_up(patch: MonkeyPatch) -> None:
    """In a call for three texts and more, two change places."""

    run = Session.run

    def mixed(self: Session, parts: Sequence[Part]) -> Logits:
        if len(parts) >= 3 and parts[0].past > 0:
            first, second, *rest = parts
            parts = [replace(first, slot=second.slot), replace(second, slot=first.slot), *rest]
        return run(self, parts)

    patch.setattr(Session, "run", mixed)


def beginning_copied_short(patch: MonkeyPatch) -> None:
    """Of a beginning that another slot has read, the last entry is not copied."""
    copy = Session.copy_prefix
    patch.setattr(Session, "copy_prefix", lambda self, source, to, length: copy(self, source, to, length - 1))


# --- verification ---


def lenience_left_on(patch: MonkeyPatch) -> None:
    keeps = verify.keeps
    patch.setattr(verify, "keeps", lambda target, draft, token, uniform: keeps(target, draft, token, 0.5 * uniform))


def greedy_lenience_left_on(patch: MonkeyPatch) -> None:
    """A drafted token is kept where it is half as likely as the best."""
    patch.setattr(ChosenSettings, "lossless", property(lambda strategy: False))

    def lenient(text: Any, logits: Logits, drafted: list[int], place: int, token: int) -> bool:
        row = text.shaper.process(logits[place], drafted[:place])
        return bool(row[token] - row.max() >= np.log(0.5))

    patch.setattr(Text, "_accepts", lenient)


def everything_accepted(patch: MonkeyPatch) -> None:
    patch.setattr(verify, "keeps", lambda target, draft, token, uniform: True)


def residual_without_subtraction(patch: MonkeyPatch) -> None:
    patch.setattr(verify, "residual", lambda target, draft: target)


def wrong_tokens_probability(patch: MonkeyPatch) -> None:
    def keeps(target: Distribution, draft: Distribution, token: int, uniform: float) -> bool:
        return uniform * draft.probability(token) < target.probability(token + 1)

    patch.setattr(verify, "keeps", keeps)


def distributions_of_the_round_before(patch: MonkeyPatch) -> None:
    """A drafted token is judged by what the draft expected one round ago."""
    last: dict[int, list[Distribution]] = {}

    def verify(scored: Scored) -> Verdict:
        drafts, count = list(scored.drafts), len(scored.drafted)
        before = last.get(scored.draws.seed, drafts)
        last[scored.draws.seed] = drafts
        return verify_mrs(replace(scored, drafts=before if len(before) == count else drafts))

    _verify(patch, "mrs", verify)


# --- random numbers ---


def number_kept_for_the_next_place(patch: MonkeyPatch) -> None:
    """Two neighbours share the target's number."""
    word = Draws._word

    def shared(draws: Draws, place: int, purpose: Purpose) -> int:
        return word(replace(draws, first=(draws.first + place) // 2), 0, purpose)

    patch.setattr(Draws, "_word", shared)


def match_noise_of_the_round(patch: MonkeyPatch) -> None:
    """The noise that draft and target share depends on where the round begins: a seed is not one text."""
    patch.setitem(VERIFIERS, "match", replace(VERIFIERS["match"], fresh=True))


# --- shaping ---


def penalties_forget_the_look_ahead(patch: MonkeyPatch) -> None:
    """The target penalises what was emitted, and not what was drafted before the place."""
    change = Shaper._change
    patch.setattr(Shaper, "_change", lambda shaper, row, ahead: change(shaper, row, []))


def grammar_forgets_the_look_ahead(patch: MonkeyPatch) -> None:
    """The grammar masks the first place of a round, and no other."""
    mask = Shaper._mask
    patch.setattr(Shaper, "_mask", lambda shaper, ahead: None if ahead else mask(shaper, ahead))


def draft_drawn_flatter_than_judged(patch: MonkeyPatch) -> None:
    """The draft's token is drawn at another temperature than it is judged by."""
    honest = Choice.of

    def of(choice: Choice, distribution: Distribution, draws: Draws, place: int) -> tuple[int, Distribution]:
        if choice.matched or choice.greedy_text or choice.kind == "greedy":
            return honest(choice, distribution, draws, place)
        flat = Distribution.of(np.sqrt(distribution.weights), distribution.ids)
        return flat.draw(draws.uniform(place, Purpose.DRAFT)), distribution

    patch.setattr(Choice, "of", of)


ROWS, EQUALITY, SAMPLING = "rows", "equality", "sampling"
BROKEN: list[tuple[Sabotage, str, str]] = [  # with the check that finds it, and where
    (row_depends_on_its_number, ROWS, "rows of the target"),
    (stale_cache_row, ROWS, "rows of the target"),
    (stale_cache_row, EQUALITY, "greedy text"),
    (rollback_one_short, EQUALITY, "greedy text"),
    (slot_mixed_up, EQUALITY, "greedy text"),
    (beginning_copied_short, EQUALITY, "greedy text"),
    (greedy_lenience_left_on, EQUALITY, "greedy text"),
    (match_noise_of_the_round, EQUALITY, "sampled text under a seed"),
    (penalties_forget_the_look_ahead, EQUALITY, "greedy text with penalties"),
    (grammar_forgets_the_look_ahead, EQUALITY, "greedy text in a grammar"),
    (lenience_left_on, SAMPLING, "sampled text, mrs: score"),
    (everything_accepted, SAMPLING, "sampled text, mrs: score"),
    (residual_without_subtraction, SAMPLING, "sampled text, mrs: score"),
    (wrong_tokens_probability, SAMPLING, "sampled text, mrs: score"),
    (distributions_of_the_round_before, SAMPLING, "sampled text, mrs: score"),
    (unprocessed_draft, SAMPLING, "sampled text, mrs"),
    (draft_drawn_flatter_than_judged, SAMPLING, "sampled text, mrs: transform by rank"),
    (number_kept_for_the_next_place, SAMPLING, "neighbours"),
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least effort by which all of these are found."""
    monkeypatch.setitem(EFFORTS, "quick", Effort(5, equal_tokens=16, sampled_tokens=120))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("sabotage", "check", "where"), BROKEN, ids=[f"{sabotage.__name__}-{check}" for sabotage, check, _ in BROKEN]
)
def test_a_broken_engine_is_caught(
    tiny_bundles: dict[str, Path], monkeypatch: MonkeyPatch, sabotage: Sabotage, check: str, where: str
) -> None:
    if sabotage is grammar_forgets_the_look_ahead and importlib.util.find_spec("llguidance") is None:
        pytest.skip("llguidance is not installed")
    sabotage(monkeypatch)
    arguments = ["lossless", str(tiny_bundles["near"]), "--effort", "quick", "--only", check, "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert "error: not lossless: " in result.stderr
    found = json.loads(result.stdout)
    assert found["passed"] is False
    failed = [entry["name"] for entry in [*found["equalities"], *found["tests"]] if not entry["passed"]]
    assert any(where in name for name in failed), failed
