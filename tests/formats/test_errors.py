"""Errors that several commands raise."""

from __future__ import annotations

import sys

import pytest

from mxspec.formats.errors import MxspecError, needs


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        pytest.raises(MxspecError, match=r"^training needs torch: pip install 'mxspec\[compile\]'$"),
        needs("compile", "training"),
    ):
        import torch  # noqa: F401
