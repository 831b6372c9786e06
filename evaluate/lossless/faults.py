"""What a wrong verifier would write at a place where a token was drafted, given both distributions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxspec.evaluate.lossless.tails import Probs


def lenient(target: Probs, draft: Probs, lenience: float) -> Probs:
    """Tokens are kept with min(1, target / (lenience · draft)); the rest comes from the residual as it should."""
    kept = np.minimum(draft, target / lenience)
    rest = np.maximum(target - draft, 0.0)
    total = rest.sum()
    written: Probs = kept + (1 - kept.sum()) * (rest / total if total > 0 else target)
    return written


def residual_from_target(target: Probs, draft: Probs) -> Probs:
    """What is rejected is replaced by a draw from the target, nothing being subtracted."""
    kept = np.minimum(draft, target)
    written: Probs = kept + (1 - kept.sum()) * target
    return written


def always_accepted(target: Probs, draft: Probs) -> Probs:
    return draft


FAULTS: dict[str, Callable[[Probs, Probs], Probs]] = {
    "lenience 0.5": lambda target, draft: lenient(target, draft, 0.5),
    "lenience 0.9": lambda target, draft: lenient(target, draft, 0.9),
    "residual from the target": residual_from_target,
    "always accepted": always_accepted,
}
