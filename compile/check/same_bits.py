"""Check that two graphs of one model give the same logits and caches in the same call, bit for bit."""

from __future__ import annotations

import numpy as np

from mxspec.compile.check.specialize import PREFIX
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session


def check_same_bits(session: Session, expected: Session, *, sequences: int, length: int, rows: int) -> None:
    """Call both with `length` tokens for each of the first `sequences` slots, `rows` of which want logits.

    Each slot already holds some tokens of its text. Raises CheckFailed if logits or caches differ.
    """
    rng = np.random.default_rng(0)
    past = min(PREFIX, session.capacity - length)
    for name, cache in session.caches.items():
        cache[:, :, :past] = rng.standard_normal(cache[:, :, :past].shape)
        expected.caches[name][:, :, :past] = cache[:, :, :past]
    tokens = rng.integers(0, session.real_vocab, (sequences, length)).tolist()
    parts = [Part(slot, past, text, rows) for slot, text in enumerate(tokens)]
    graph = session.entry.graph
    try:
        got = session.run(parts)
    except Exception as error:  # ONNX Runtime's own errors have no common base
        raise CheckFailed(f"{graph}: its call fails: {' '.join(str(error).split())}") from None
    if not np.array_equal(got.view(np.uint32), expected.run(parts).view(np.uint32)):
        raise CheckFailed(f"{graph}: its logits are not bit for bit those of {expected.entry.graph}")
    for name, cache in session.caches.items():
        written = np.s_[:, :, : past + length]
        if cache[written].tobytes() != expected.caches[name][written].tobytes():
            raise CheckFailed(f"{graph}: present_{name} is not bit for bit that of {expected.entry.graph}")
