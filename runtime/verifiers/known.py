"""The verifiers of sampled text, by the names under which users ask for them."""

from __future__ import annotations

from mxspec.runtime.verifiers.block import verify_block
from mxspec.runtime.verifiers.match import verify_match
from mxspec.runtime.verifiers.mrs import verify_mrs
from mxspec.runtime.verifiers.verifier import Verifier

MRS = Verifier("mrs", verify_mrs, takes_lenience=True)
BLOCK = Verifier("block", verify_block, fresh=True)
MATCH = Verifier("match", verify_match, matched=True)
VERIFIERS = {verifier.name: verifier for verifier in (MRS, BLOCK, MATCH)}
