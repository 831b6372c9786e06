"""The end of every measurement and check: write a record if asked, then print tables or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from mxspec.evaluate.record import write_record
from mxspec.evaluate.render import renderables
from mxspec.evaluate.result import Result
from mxspec.runtime.cli.command import print_json, report_console


def report(result: Result, json_output: bool, record: Path | None) -> None:
    """Write the record, and print the result."""
    width = report_console().width
    shown = [] if json_output else [part for sheet in result.sheets() for part in renderables(sheet, width)]
    found = json.loads(result.model_dump_json())  # null for values that are not finite
    finish(result.kind, found, shown, json_output, record)


def finish(
    kind: str, result: Mapping[str, Any], shown: Sequence[RenderableType], json_output: bool, record: Path | None
) -> None:
    """Write the record, and print one JSON object or the tables."""
    if record is not None:
        write_record(record, kind, result)
    if json_output:
        print_json(result)
    else:
        for part in shown:
            report_console().print(part)
