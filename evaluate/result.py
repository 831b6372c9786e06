"""What a measurement or a check found: a frozen value that reads as tables, and is a record as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from mxspec.evaluate.sheet import Sheet


class Value(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Result(Value):
    """The base of every result; as JSON it is what --json prints and a record holds (null for what is not finite)."""

    def sheets(self) -> Sequence[Sheet]:
        """What a person reads."""
        raise NotImplementedError
