"""Sizes in the words of people: 2GiB, 500MB."""

from __future__ import annotations

from typing import Any

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

_SIZES = TypeAdapter(ByteSize)


class Bytes(click.ParamType[int]):
    """A number of bytes with its unit; an int."""

    name = "size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        try:
            size = int(_SIZES.validate_python(value))
        except ValidationError:
            size = 0
        if size < 1:
            self.fail(f"got {value!r}, expected a number of bytes such as 2GiB or 500MB", parameter, context)
        return size
