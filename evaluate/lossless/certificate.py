"""All checks in order, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from mxspec.evaluate.lossless.bits import check_bits
from mxspec.evaluate.lossless.effort import EFFORTS, measure_speed
from mxspec.evaluate.lossless.equal import check_equality
from mxspec.evaluate.lossless.evidence import Evidence
from mxspec.evaluate.lossless.finding import Chance, Equality, Power
from mxspec.evaluate.lossless.prompts import make_prompts
from mxspec.evaluate.lossless.rescored import check_rescored
from mxspec.evaluate.progress import Progress, silent
from mxspec.evaluate.significance import holm
from mxspec.runtime.engine import Engine

FALSE_ALARM = 1e-3  # probability that any test fails, for a correct engine
CHECKS = ("rows", "equality", "sampling")
PROMPTS = 10
ROW_TOKENS = 64


@dataclass(slots=True)
class Certificate:
    """The results of all comparisons and tests."""

    effort: str
    seed: int
    equalities: list[Equality] = field(default_factory=list)
    chances: list[Chance] = field(default_factory=list)
    powers: dict[str, list[Power]] = field(default_factory=dict)  # for each way to sample
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed_chances(self) -> set[str]:
        """The tests whose p-value is too small."""
        return holm({chance.name: chance.p_value for chance in self.chances}, FALSE_ALARM)

    @property
    def passed(self) -> bool:
        return all(equality.passed for equality in self.equalities) and not self.failed_chances

    @property
    def failures(self) -> list[str]:
        """What failed, in words."""
        unequal = [f"{found.name}: {found.detail}" for found in self.equalities if not found.passed]
        failed = self.failed_chances
        unlikely = [
            f"{chance.name}: p = {chance.p_value:.1e}" + (f", {chance.detail}" if chance.detail else "")
            for chance in self.chances
            if chance.name in failed
        ]
        return [*unequal, *unlikely]


def certify(
    engine: Engine,
    text: str | None,
    effort: str,
    seed: int,
    only: Collection[str] = CHECKS,
    progress: Progress = silent,
) -> Certificate:
    """Run the checks that `only` names. Raises MxspecError if the text is too short."""
    began = time.perf_counter()
    found = Certificate(effort, seed)
    wanted = EFFORTS[effort]
    prompts = make_prompts(engine, text, PROMPTS, seed)
    progress("timing calls")
    speed = measure_speed(engine)
    if "rows" in only:
        progress("rows against single steps")
        tokens = [token for prompt in prompts for token in (prompt.source or prompt.tokens)][:ROW_TOKENS]
        found.equalities += check_bits(engine, tokens, wanted, speed).equalities
    if "equality" in only:
        part = check_equality(engine, prompts, seed, wanted, speed, progress)
        found.equalities += part.equalities
        found.skipped += part.skipped
    evidence: list[Evidence] = []
    if "sampling" in only:
        evidence, equalities = check_rescored(engine, prompts, seed, wanted, speed, progress)
        found.equalities += equalities
        found.chances += [chance for one in evidence for chance in one.chances()]
    level = FALSE_ALARM / max(len(found.chances), 1)
    found.powers = {one.name: one.powers(level) for one in evidence[:1]}
    found.seconds = time.perf_counter() - began
    return found
