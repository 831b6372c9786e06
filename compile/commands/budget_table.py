"""A model's budget as a table: its products in the order of their loss for each byte saved."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mxspec.formats.manifest import BudgetEntry, ProductEntry

_FIRST, _LAST = 16, 8  # rows of a long ranking to show


def budget_table(budget: BudgetEntry) -> Table:
    """The ranking, the most sensitive product first; only both ends of a long one."""
    title = "formats chosen, losses in thousandths of a nat a token; what loses most by the byte comes first"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("product", overflow="fold", min_width=34)
    table.add_column("format")
    for column in ("MB", "saved", "loss", "a MB"):
        table.add_column(column, justify="right")
    hidden = len(budget.products) - _FIRST - _LAST
    for place, product in enumerate(budget.products):
        if hidden > 0 and place == _FIRST:
            table.add_row(f"… {hidden} more, all in --json")
        if hidden <= 0 or not _FIRST <= place < _FIRST + hidden:
            table.add_row(*_row(product))
    return table


def _row(product: ProductEntry) -> tuple[str, ...]:
    return (
        product.name.removeprefix("model.").removesuffix(".weight"),
        product.format + (" (fixed)" if product.fixed else ""),
        f"{product.bytes / 1e6:.2f}",
        f"{product.saved_bytes / 1e6:.2f}",
        f"{product.loss * 1e3:.4f}",
        f"{product.loss_a_byte * 1e9:.3f}",
    )


def budget_line(budget: BudgetEntry) -> str:
    """One line with the requested and the reached budget."""
    asked = f"{budget.budget_bits:g} bits a weight" if budget.max_ratio is None else f"a ratio of {budget.max_ratio:g}"
    return (
        f"  budget: {asked} asked; {budget.reached_bits:.4f} bits a weight, predicted ratio of perplexity "
        f"{budget.predicted_ratio:.5f}, by {budget.tokens:,} tokens of the text {budget.text_sha256[:12]}, "
        f"seed {budget.seed}"
    )
