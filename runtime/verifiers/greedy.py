"""Greedy verification: the text is the one that the target alone writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mxspec.runtime.verifiers.verdict import Verdict


def verify_greedy(
    target: Callable[[int], int], drafted: Sequence[int], accepts: Callable[[int, int], bool] | None = None
) -> Verdict:
    """Keep the longest prefix of the drafted int[K] that equals the target's own choices; its next choice follows.

    `target(i)` is its choice in the place of the i-th drafted token, and after all of them at i = K; it is not called
    for anything after the first that is not kept. With lenience `accepts(i, token)` says which others are kept as well.
    """
    for i, token in enumerate(drafted):
        choice = target(i)
        if choice != token and not (accepts and accepts(i, token)):
            return Verdict(i, i + 1, choice)
    return Verdict(len(drafted), len(drafted), target(len(drafted)))
