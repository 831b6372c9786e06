"""The table of operators that graphs are written with, against what the native library registers."""

from __future__ import annotations

import ctypes

from mxspec.compile.graph.operators import ATTENTION, DOMAIN, OPERATORS, OPSET
from mxspec.runtime import ops


def test_the_library_registers_the_same_operators() -> None:
    exported = ctypes.CDLL(str(ops.library_path())).mxspec_ops_signatures
    exported.restype = ctypes.c_char_p
    domain, *signatures = exported().decode().splitlines()
    assert domain == f"{DOMAIN} {OPSET}"
    assert set(signatures) == {operator.signature for operator in OPERATORS}


def test_slots_are_counted_from_the_first_input() -> None:
    assert [ATTENTION.slot(name) for name in ("query", "new_lengths", "sinks")] == [0, 7, 9]
