"""Arrays in a file: what any reader of safetensors finds there, and files that are none."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mxspec.formats.errors import BundleError
from mxspec.formats.safetensors_file import map_arrays, write_arrays

ARRAYS = {
    "a.1": np.arange(7, dtype=np.int32),
    "b": np.array([1 << 40, -3]),
    "empty": np.empty(0, np.int32),
    "bytes": np.arange(9, dtype=np.uint8),
}


def test_arrays_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "arrays.safetensors"
    assert write_arrays(path, ARRAYS) == hashlib.sha256(path.read_bytes()).hexdigest()
    mapped, reference = map_arrays(path), load_file(path)
    assert mapped.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        for found in (mapped[name], reference[name]):
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype
    with pytest.raises(ValueError, match="read-only"):
        mapped["b"][0] = 1


@pytest.mark.parametrize("array", [np.zeros(3, np.float32), np.zeros((2, 2), np.int32)])
def test_other_arrays_are_refused(tmp_path: Path, array: np.ndarray) -> None:  # type: ignore[type-arg]
    save_file({"x": array}, tmp_path / "x.safetensors")
    with pytest.raises(BundleError, match=r"x.safetensors: 'x' is .*, expected a row of integers"):
        map_arrays(tmp_path / "x.safetensors")
