"""The budget of a model for people: its products in the order of what they lose by the byte."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mxspec.formats.manifest import BudgetEntry


def budget_table(budget: BudgetEntry) -> Table:
    """The ranking, the most sensitive product first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="formats chosen, most sensitive first", title_justify="left")
    table.add_column("product", overflow="fold", min_width=20)
    table.add_column("format")
    for column in ("MB", "saved", "loss (mnat)", "mnat a MB"):
        table.add_column(column, justify="right")
    for product in budget.products:
        table.add_row(
            product.name.removeprefix("model.").removesuffix(".weight"),
            product.format + (" (fixed)" if product.fixed else ""),
            f"{product.bytes / 1e6:.2f}",
            f"{product.saved_bytes / 1e6:.2f}",
            f"{product.loss * 1e3:.4f}",
            f"{product.loss_a_byte * 1e9:.3f}",
        )
    return table


def budget_line(budget: BudgetEntry) -> str:
    """What was asked, and what was reached."""
    asked = f"{budget.budget_bits:g} bits a weight" if budget.max_ratio is None else f"a ratio of {budget.max_ratio:g}"
    return (
        f"  budget: {asked} asked; {budget.reached_bits:.4f} bits a weight, predicted ratio of perplexity "
        f"{budget.predicted_ratio:.5f}, by {budget.tokens:,} tokens of the text "
        f"{budget.text_sha256[:12]}, seed {budget.seed}"
    )
