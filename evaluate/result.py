"""What a measurement or a check found: a frozen value that prints itself as tables, and is a record as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from rich.table import Table


class Result(BaseModel):
    """The base of every result; `model_dump(mode="json")` is what --json prints and a record holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="null")

    def tables(self) -> Sequence[Table]:
        """What a person reads."""
        raise NotImplementedError
