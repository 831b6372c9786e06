"""The result of a measurement or a check: a frozen value that prints as tables, and is stored as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from mxspec.evaluate.sheet import Sheet


class Value(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Result(Value):
    """The base of every result. --json prints it and a record holds it as JSON; values that are not finite are null.

    A record says the result's `kind`, by which it is read again.
    """

    kind: ClassVar[str]

    def sheets(self) -> Sequence[Sheet]:
        """The tables of the result."""
        raise NotImplementedError
