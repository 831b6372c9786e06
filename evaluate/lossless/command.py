"""`speccheck lossless`: is drafted text the target's own?"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import click

from mxspec.evaluate.lossless.bits import check_bits
from mxspec.evaluate.lossless.effort import EFFORTS, measure_speed
from mxspec.evaluate.lossless.equal import check_equality
from mxspec.evaluate.lossless.evidence import Evidence
from mxspec.evaluate.lossless.prompts import make_prompts
from mxspec.evaluate.lossless.rescored import check_rescored
from mxspec.evaluate.lossless.result import FALSE_ALARM, Certificate, Equality
from mxspec.evaluate.options import Progress, Run, run_options, silent
from mxspec.evaluate.significance import holm_corrected, scipy_stats
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command, read_text
from mxspec.runtime.engine import SLOTS, Engine

CHECKS = ("rows", "equality", "sampling")
PROMPTS = 10
ROW_TOKENS = 64


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path),
    help="UTF-8 file that prompts are cut from.  [default: random tokens]",
)
@click.option(
    "--effort", type=click.Choice(list(EFFORTS)), default="normal", show_default=True, help="Amount of checking."
)
@click.option(
    "--only", multiple=True, type=click.Choice(CHECKS), help="Run only this check. May be given several times."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of prompts and samples.")
@click.option(
    "--slots", type=click.IntRange(min=1), default=SLOTS, show_default=True, help="Largest number of texts at a time."
)
@run_options
def lossless(
    bundle: Path,
    text_file: Path | None,
    effort: str,
    only: tuple[str, ...],
    seed: int,
    slots: int,
    run: Run,
) -> None:
    """Check that BUNDLE writes the same with drafts as its target alone.

    Compares the scores of K + 1 tokens with those of single steps, bit for bit; greedy and seeded text of each drafter
    and K with the text of the target alone; and sampled text with the target's distribution. The exit code is 2 if
    anything differs. A correct engine fails in at most one of a thousand runs.
    """
    text = None if text_file is None else read_text(text_file, "--text")
    with Engine(bundle, slots=slots, threads=run.threads) as engine, run.console.status("opening the bundle") as status:
        found = certify(engine, text, effort, seed, only or CHECKS, status.update)
    run.finish(found)
    if not run.json_output:
        for line in found.sentences():
            run.console.print(line, highlight=False, markup=False)
    if not found.passed:
        first, *others = found.failures
        more = f"; and {len(others)} more" if others else ""
        raise CheckFailed(f"not lossless: {first}{more}")


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
