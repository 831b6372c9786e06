"""All checks in order, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Collection

from mxspec.evaluate.lossless.bits import check_bits
from mxspec.evaluate.lossless.effort import EFFORTS, measure_speed
from mxspec.evaluate.lossless.equal import check_equality
from mxspec.evaluate.lossless.evidence import Evidence
from mxspec.evaluate.lossless.prompts import make_prompts
from mxspec.evaluate.lossless.rescored import check_rescored
from mxspec.evaluate.lossless.result import FALSE_ALARM, Certificate, Equality
from mxspec.evaluate.options import Progress, silent
from mxspec.evaluate.significance import holm_corrected, scipy_stats
from mxspec.runtime.engine import Engine

CHECKS = ("rows", "equality", "sampling")
PROMPTS = 10
ROW_TOKENS = 64


def certify(
    engine: Engine,
    text: str | None,
    effort: str,
    seed: int,
    only: Collection[str] = CHECKS,
    progress: Progress = silent,
) -> Certificate:
    """Run the checks that `only` names. Raises MxspecError if the text is too short, or SciPy is missing."""
    began = time.perf_counter()
    if "sampling" in only:
        scipy_stats()
    wanted = EFFORTS[effort]
    prompts = make_prompts(engine, text, PROMPTS, seed)
    progress("timing calls")
    speed = measure_speed(engine)
    equalities: list[Equality] = []
    skipped: list[str] = []
    evidence: list[Evidence] = []
    if "rows" in only:
        progress("rows against single steps")
        tokens = [token for prompt in prompts for token in (prompt.source or prompt.tokens)][:ROW_TOKENS]
        equalities += check_bits(engine, tokens, wanted, speed)
    if "equality" in only:
        equalities += check_equality(engine, prompts, seed, wanted, speed, progress, skipped)
    if "sampling" in only:
        evidence, found = check_rescored(engine, prompts, seed, wanted, speed, progress)
        equalities += found
    tests = [chance for one in evidence for chance in one.chances()]
    corrected = holm_corrected([chance.p_value for chance in tests])
    passed = [p > FALSE_ALARM for p in corrected]
    return Certificate(
        bundle=engine.bundle.manifest.name,
        effort=effort,
        seed=seed,
        passed=all(passed) and all(equality.passed for equality in equalities),
        equalities=tuple(equalities),
        tests=tuple(chance.model_copy(update={"passed": p}) for chance, p in zip(tests, passed, strict=True)),
        power=tuple(evidence[0].powers(FALSE_ALARM / max(len(tests), 1)) if evidence else ()),
        not_checked=tuple(skipped),
        seconds=round(time.perf_counter() - began, 1),
    )
