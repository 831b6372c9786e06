"""specbench shapes: the bundles of random weights that --shape made, and how to be rid of them."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from mxspec.evaluate.bench.options import work_option
from mxspec.evaluate.bench.shapes.kept import kept_bundles
from mxspec.runtime.cli.command import Command, print_json, report_console


@click.command("shapes", cls=Command)
@work_option
@click.option("--remove", is_flag=True, help="Remove the bundles.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def bench_shapes(*, work: Path, remove: bool, json_output: bool) -> None:
    """List the bundles of random weights that --shape made, with their sizes, or remove them."""
    found = kept_bundles(work)
    for bundle in found if remove else ():
        bundle.remove()
    if json_output:
        listed = [{"path": str(bundle.path), "bytes": bundle.bytes} for bundle in found]
        print_json({"bundles": listed, "removed": remove})
        return
    console = report_console()
    if not found:
        console.print(f"no bundles of random weights in {work}", markup=False)
        return
    table = Table("removed" if remove else "bundle of random weights", "MB", title_justify="left")
    for bundle in found:
        table.add_row(str(bundle.path), f"{bundle.bytes / 1e6:,.1f}")
    console.print(table)
