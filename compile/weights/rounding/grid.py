"""The values of an MX element, and rounding to them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.tiles import dequantize
from mxspec.formats.weight_format import weight_format

_UNIT_SCALE = 127  # the E8M0 byte of 2^0
_EXPONENT_BITS = np.int32(0x7F800000)
_MANTISSA_WIDTH = 23  # of a float32


@dataclass(frozen=True, slots=True)
class Grid:
    """A symmetric grid: spacing 2^(e - mantissa_bits) between 2^e and 2^(e+1), for e from `emin`, up to `largest`."""

    mantissa_bits: int
    emin: int
    largest: float

    @classmethod
    def of(cls, format_name: str) -> Grid:
        """The grid of an MX weight format, from its codec's values of all codes. Raises ValueError."""
        form = weight_format(format_name)
        if form.element is None:
            raise ValueError(f"format: got {format_name!r}, expected an MX format")
        codes = np.arange(1 << form.bits, dtype=np.uint8)[:, None]
        values = dequantize(codes, np.full((len(codes), 1), _UNIT_SCALE, np.uint8), form.element)
        smallest, *_, below, largest = np.unique(values[values > 0]).tolist()
        mantissa_bits = math.frexp(largest)[1] - math.frexp(largest - below)[1]
        return cls(mantissa_bits, math.frexp(smallest)[1] - 1 + mantissa_bits, largest)

    @property
    def emax(self) -> int:
        """Exponent of the largest value."""
        return math.frexp(self.largest)[1] - 1

    def round(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The nearest numbers of the grid, ties to even; larger magnitudes become the largest."""
        steps = values.view(np.int32) & _EXPONENT_BITS
        np.maximum(steps, np.int32((self.emin + _UNIT_SCALE) << _MANTISSA_WIDTH), out=steps)
        steps -= np.int32(self.mantissa_bits << _MANTISSA_WIDTH)
        step = steps.view(np.float32)
        rounded = values / step
        np.rint(rounded, out=rounded)
        rounded *= step
        return np.clip(rounded, -self.largest, self.largest, out=rounded)
