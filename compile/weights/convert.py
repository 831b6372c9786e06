"""Plain conversions for tensors that are not packed: embeddings to float16, norms and biases to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mxspec.compile.checkpoint.tensors.tensor import as_float32
from mxspec.formats.tiles import PackStatistics

FP16_MAX = 65504.0


def convert(
    values: npt.NDArray[Any], dtype: str, to: type[np.float16] | type[np.float32]
) -> tuple[npt.NDArray[Any], PackStatistics]:
    """Round to nearest even, and count the effects as the packers do."""
    exact = as_float32(values, dtype)
    finite = np.isfinite(exact)
    nonfinite = int(finite.size - np.count_nonzero(finite))
    if to is np.float32:
        return exact, PackStatistics(nonfinite=nonfinite)
    overflow = int(np.count_nonzero(np.abs(exact[finite]) > FP16_MAX))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float16)
    if nonfinite or overflow:
        return rounded, PackStatistics(nonfinite=nonfinite, overflow=overflow)
    error = exact - rounded.astype(np.float32)
    return rounded, PackStatistics(
        squared_error=float(np.sum(np.square(error, dtype=np.float64))),
        squared_norm=float(np.sum(np.square(exact, dtype=np.float64))),
        underflow=int(np.count_nonzero((rounded == 0) & (exact != 0))),
    )
