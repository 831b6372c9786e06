"""One fixed set of calls of every operator: `python -m tests.runtime.ops.fixed_calls FILE` stores what they give."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.runtime.ops import (
    test_attention_op,
    test_encoder_decoder_ops,
    test_experts_op,
    test_gated_op,
    test_matmul_op,
    test_norm_op,
    test_qkv_attention_op,
)

OPERATORS = {
    "attention": test_attention_op,
    "encoder_decoder": test_encoder_decoder_ops,
    "experts": test_experts_op,
    "gated": test_gated_op,
    "matmul": test_matmul_op,
    "norm": test_norm_op,
    "qkv_attention": test_qkv_attention_op,
}


def outputs() -> dict[str, NDArray[Any]]:
    """All arrays, by operators and call."""
    calls = {name: dict(module.fixed_calls()) for name, module in OPERATORS.items()}
    return {f"{name}/{call}": array for name, arrays in calls.items() for call, array in arrays.items()}


if __name__ == "__main__":
    np.savez(Path(sys.argv[1]), **outputs())
