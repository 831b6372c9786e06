"""Threads of the operators, which a test may change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mxspec.runtime import ops


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test's own number of `threads`, if it has one; afterwards there are as many as before."""
    before = ops.threads()
    if "threads" in request.fixturenames:
        ops.set_threads(request.getfixturevalue("threads"))
    yield
    ops.set_threads(before)
