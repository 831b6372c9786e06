"""Modified rejection sampling: the text has exactly the target's distribution.

Lossless speculative decoding after Leviathan et al. (2023), algorithm 1, and Chen et al. (2023), algorithm 2. The
acceptance test and the residual use the distributions that the tokens were really drawn from: both shaped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Purpose
from mxspec.runtime.verifiers.verdict import Verdict
from mxspec.runtime.verifiers.verifier import Scored


def verify_mrs(scored: Scored) -> Verdict:
    """Keep a token with probability min(1, target / (lenience · draft)).

    The first that is not kept is replaced by a draw from the normalised positive part of target - draft. With a
    lenience below 1 (Leviathan et al., A.5) the text is no longer the target's; no token becomes likelier than the
    target's probability over the lenience, and none that the target cannot write is kept.
    """
    draws, drafts = scored.draws, scored.drafts
    for i, token in enumerate(scored.drafted):
        wanted = scored.target(i)
        if not keeps(wanted, drafts[i], token, scored.lenience * draws.uniform(i, Purpose.ACCEPT)):
            return Verdict(i, i + 1, residual(wanted, drafts[i]).draw(draws.uniform(i, Purpose.RESAMPLE)))
    count = len(scored.drafted)
    return Verdict(count, count, scored.target(count).draw(draws.uniform(count, Purpose.RESAMPLE)))


def keeps(target: Distribution, draft: Distribution, token: int, uniform: float) -> bool:
    """True with probability min(1, target / draft) of the token; one that the draft cannot have drawn is not kept."""
    draft_probability = draft.probability(token)
    return draft_probability > 0 and uniform * draft_probability < target.probability(token)


def residual(target: Distribution, draft: Distribution, kept: float = 1.0) -> Distribution:
    """The positive part of kept · target - draft; the target itself where rounding has left nothing of it."""
    rest = Distribution.of(surplus(target, draft, kept), target.ids)
    return rest if rest.total > 0 else target


def surplus(target: Distribution, draft: Distribution, kept: float = 1.0) -> NDArray[np.float64]:
    """float64: max(0, kept · target - draft) for each token that the target can write."""
    count = len(target.weights)
    own = target.probabilities(target.ids, count)
    return np.maximum(kept * own - draft.probabilities(target.ids, count), 0.0)
