"""speccompile inspect: show what a bundle holds, and check that its files are unchanged."""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.compile.commands.report import as_json, print_report
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command, print_json, report_console


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Check the hash of every file; exit code 2 if one differs.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def inspect(bundle: Path, *, verify: bool, json_output: bool) -> None:
    """Show what BUNDLE holds."""
    opened = Bundle.open(bundle)
    changed = list(opened.changed_files()) if verify else []
    if json_output:
        print_json(as_json(bundle, opened.manifest) | ({"changed_files": changed} if verify else {}))
    else:
        print_report(bundle, opened.manifest, report_console())
    if changed:
        raise CheckFailed(f"bundle {bundle}: SHA-256 differs for {', '.join(changed)}; compile it again")
    if verify and not json_output:
        report_console().print(f"all {len(opened.manifest.files)} files are what speccompile wrote")
