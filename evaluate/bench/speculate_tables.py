"""What `specbench speculate` measured, as tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from mxspec.evaluate.bench.speculate import ANSWER_TOKENS


def plain_table(result: dict[str, Any]) -> Table:
    """Plain decoding, which all is compared with."""
    plain = result["plain"]
    table = Table("plain, tok/s", f"{ANSWER_TOKENS} tokens, s", "90th percentile", "threads")
    seconds = plain["answer_seconds"]
    speed = 1 / plain["seconds_per_token"]
    table.add_row(f"{speed:.1f}", f"{seconds['median']:.3f}", f"{seconds['p90']:.3f}", str(result["threads"]))
    return table


def speculate_table(bundle: str, drafter: str, found: dict[str, Any]) -> Table:
    """A line for each K, and one for K chosen by cost."""
    columns = ("acceptance", "c", "v", "tokens a round", "ideal", "speedup", "predicted", "measured/predicted")
    answer = (f"{ANSWER_TOKENS} tokens, s", "90th percentile", "outside the models")
    table = Table("K", *columns, *answer, title=f"{bundle}, drafter {drafter}", title_justify="left")
    for row in found["rows"]:
        over = (f"{row['predicted']:.2f}", f"{row['measured_over_predicted']:.2f}")
        _add(table, str(row["k"]), row, f"{row['ideal_tokens_per_round']:.2f}", over)
    table.add_section()
    auto = found["auto"]
    _add(table, f"auto ({auto['drafted_per_round']:.1f})", auto, "", ("", ""))
    return table


def _add(table: Table, k: str, row: dict[str, Any], ideal: str, over: tuple[str, str]) -> None:
    seconds = row["answer_seconds"]
    table.add_row(
        k,
        f"{row['acceptance']:.3f}",
        f"{row['c']:.4f}",
        f"{row['v']:.2f}",
        f"{row['tokens_per_round']:.2f}",
        ideal,
        f"{row['speedup']:.2f}",
        *over,
        f"{seconds['median']:.3f}",
        f"{seconds['p90']:.3f}",
        f"{row['outside_models']:.1%}",
    )


def turns_table(result: dict[str, Any]) -> Table:
    """What alternating on the same threads costs both models."""
    turns = result["turns"]
    table = Table("a step, alternating", "us", "over alone")
    for name in ("target", "draft"):
        table.add_row(name, f"{turns[f'{name}_seconds'] * 1e6:.1f}", f"{turns[f'{name}_over_alone']:.3f}")
    both = turns["target_seconds"] + turns["draft_seconds"]
    table.add_row("both", f"{both * 1e6:.1f}", f"{turns['over_alone']:.3f}")
    return table
