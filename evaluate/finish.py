"""How every measurement and every check ends: a record where one is wanted, then tables or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from mxspec.evaluate.record import write_record
from mxspec.evaluate.result import Result
from mxspec.runtime.cli.command import print_json, report_console


def report(result: Result, json_output: bool, record: Path | None) -> None:
    """Write the record, and print the result."""
    plain = json.loads(result.model_dump_json())  # null for what is not finite
    finish(plain, [] if json_output else result.tables(), json_output, record)


def finish(result: Mapping[str, Any], tables: Sequence[Table], json_output: bool, record: Path | None) -> None:
    """Likewise, of a result that has no type of its own yet."""
    if record is not None:
        write_record(record, result)
    if json_output:
        print_json(result)
    else:
        for table in tables:
            report_console().print(table)
