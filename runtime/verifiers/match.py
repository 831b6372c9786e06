"""Sample and match: draft and target choose by the same noise, and a drafted token is kept where they agree.

The target's choice argmax(log p + g) with Gumbel noise g is a draw from p. Its noise is that of the seed, the sample
and the position alone, so a seed gives one text: at every K, with every drafter, in every batch, and without drafting.
"""

from __future__ import annotations

from mxspec.runtime.verifiers.greedy import verify_greedy
from mxspec.runtime.verifiers.verdict import Verdict
from mxspec.runtime.verifiers.verifier import Scored


def verify_match(scored: Scored) -> Verdict:
    """Keep the longest beginning that the target chooses too; its next choice follows."""
    return verify_greedy(lambda place: scored.target(place).race(scored.draws, place), scored.drafted)
