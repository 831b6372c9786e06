"""The certificate as tables, as sentences, and as one object."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from mxspec.evaluate.lossless.certificate import FALSE_ALARM, Certificate
from mxspec.evaluate.lossless.finding import Power
from mxspec.runtime.engine import Engine

SURE = 0.95


def describe(found: Certificate, engine: Engine) -> dict[str, Any]:
    """The result as --json prints it and as records hold it."""
    failed = found.failed_chances
    return {
        "bundle": engine.bundle.manifest.name,
        "effort": found.effort,
        "seed": found.seed,
        "passed": found.passed,
        "false_alarm": FALSE_ALARM,
        "equalities": [
            {
                "name": equality.name,
                "compared": equality.compared,
                "unit": equality.unit,
                "different": len(equality.differences),
                "detail": equality.detail,
                "passed": equality.passed,
            }
            for equality in found.equalities
        ],
        "tests": [
            {
                "name": chance.name,
                "compared": chance.compared,
                "unit": chance.unit,
                "p_value": chance.p_value,
                "detail": chance.detail,
                "passed": chance.name not in failed,
            }
            for chance in found.chances
        ],
        "power": [
            {
                "texts": name,
                "fault": power.fault,
                "probability": power.probability,
                "tokens": power.tokens,
                "tokens_needed": power.tokens_needed,
            }
            for name, powers in found.powers.items()
            for power in powers
        ],
        "not_checked": found.skipped,
        "seconds": round(found.seconds, 1),
    }


def as_tables(found: Certificate) -> list[Table]:
    """Tables of comparisons, of tests, and of faults that would have shown."""
    tables = []
    if found.equalities:
        table = _table("equal, bit for bit", "what", "compared", "result")
        for equality in found.equalities:
            result = "equal" if equality.passed else f"{len(equality.differences):,} different"
            table.add_row(equality.name, f"{equality.compared:,} {equality.unit}", result)
        tables.append(table)
    tables += [_chances(found, unit) for unit in dict.fromkeys(chance.unit for chance in found.chances)]
    for name, powers in found.powers.items():
        table = _table(f"what would have shown in {name}", "fault", "probability", f"tokens for {SURE}")
        for power in powers:
            table.add_row(power.fault, f"{power.probability:.3f}", _tokens(power))
        tables.append(table)
    return tables


def _chances(found: Certificate, unit: str) -> Table:
    """The p-values of tests, a row for each way to sample."""
    chances = [chance for chance in found.chances if chance.unit == unit]
    tests = list(dict.fromkeys(chance.test for chance in chances))
    table = _table("distributed as the target's own: p-values", "way", unit, *tests, "result")
    failed = found.failed_chances
    for way in dict.fromkeys(chance.way for chance in chances):
        own = {chance.test: chance for chance in chances if chance.way == way}
        wrong = [test for test, chance in own.items() if chance.name in failed]
        values = [f"{own[test].p_value:.2g}" if test in own else "" for test in tests]
        compared = max(chance.compared for chance in own.values())
        table.add_row(way, f"{compared:,}", *values, f"{', '.join(wrong)} failed" if wrong else "passed")
    return table


def as_sentences(found: Certificate) -> list[str]:
    """The verdict, and what it covers."""
    if not found.passed:
        return ["Not lossless: what was drafted changed the text.", *(f"  {failure}" for failure in found.failures)]
    tests = f"{len(found.chances)} tests" if found.chances else "no test of a distribution"
    lines = [f"Lossless as far as {_compared(found)} of this pair and {tests} can tell."]
    if found.chances:
        lines.append(f"All tests together fail a correct engine in at most {FALSE_ALARM:.1%} of runs.")
    for name, powers in found.powers.items():
        shown = [power.fault for power in powers if power.probability >= SURE]
        unsure = [f"{power.fault} ({_tokens(power)} tokens)" for power in powers if power.probability < SURE]
        if shown:
            lines.append(f"In {name}, this run would have shown: {', '.join(shown)}.")
        if unsure:
            lines.append(f"It had too few tokens to be sure of: {', '.join(unsure)}; --effort thorough has more.")
    lines += [f"Not checked: {skipped}" for skipped in found.skipped]
    return lines


def _compared(found: Certificate) -> str:
    """What was compared, by kind."""
    counts: Counter[str] = Counter()
    for equality in found.equalities:
        counts[equality.unit] += equality.compared
    return ", ".join(f"{count:,} {unit}" for unit, count in counts.items())


def _tokens(power: Power) -> str:
    return "never shows" if power.tokens_needed is None else f"{power.tokens_needed:,}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i in (0, len(columns) - 1) else "right")
    return table
