"""From rows of logits to beams: log-probabilities, shaped by the text's settings, and the conditions that end a beam.

One shaper serves all beams: it keeps their common prefix, and treats the rest of each beam as a look-ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mxspec.runtime.beams.node import Node, common_ancestor
from mxspec.runtime.beams.step import Candidate, log_softmax
from mxspec.runtime.events import FinishReason
from mxspec.runtime.sampling.logprobs import raw_logprob
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.text.stream import TextStream


class Shaping:
    """The settings and the shaper of all beams of a text.

    `stream` turns an answer's tokens into text, if stop strings may end it. `logprobs` is the number of likeliest
    tokens reported with each token, of the model's own distribution or, with `shaped`, of the one that ranks beams.
    """

    def __init__(
        self,
        shaper: Shaper,
        root: Node,
        eos: Collection[int],
        longest: int,
        stream: TextStream | None,
        logprobs: int | None = None,
        *,
        shaped: bool = False,
        at_limit: FinishReason = "max_new_tokens",
    ) -> None:
        self.ends = frozenset(eos)
        self.longest = longest  # most tokens of an answer, and the reason for ending there
        self._at_limit = at_limit
        self._shaper = shaper
        self._base = root  # the shaper keeps the tokens up to here
        self._root = root
        self._logprobs, self._shaped = logprobs, shaped
        root.stream = stream

    def log_probs(self, nodes: Sequence[Node], logits: Logits) -> Logits:
        """Processed log-probabilities of the tokens after each beam, float32[live, vocab]; they need not sum to 1."""
        rows = log_softmax(logits)
        if not self._shaper.plain:
            for row, node in zip(rows, nodes, strict=True):
                row[:] = self._shaper.process(row, node.tokens(self._base))
        return rows

    def end_of(self, node: Node) -> FinishReason | None:
        """Why the text of this node has ended; None if it has not."""
        if node.token in self.ends:
            return "eos"
        if self._stops(node):
            return "stop"
        if self._shaper.grammar is not None and self._shaper.completed(node.tokens(self._base)):
            return "grammar"
        return self._at_limit if node.length - self._root.length >= self.longest else None

    def ends_of(self, nodes: Sequence[Node]) -> Callable[[Candidate], FinishReason | None]:
        """Why a continuation of one of these beams ends the text, as a function of the continuation."""
        return lambda one: self.end_of(nodes[one.parent].child(one.token))

    def note(self, node: Node, logits: Logits, log_probs: Logits) -> None:
        """Note that a node becomes part of a text; its token was chosen from these rows."""
        if self._logprobs is not None and node.logprob is None:
            node.logprob = raw_logprob(log_probs if self._shaped else logits, node.token, self._logprobs)

    def keep(self, live: Sequence[Node]) -> None:
        """Note the beams that go on; their common prefix is certain."""
        if self._shaper.plain:
            return
        base = common_ancestor(live)
        if base is not self._base:
            for token in base.tokens(self._base):
                self._shaper.keep([token])
            self._base = base

    def _stops(self, node: Node) -> bool:
        """Whether this token completes a stop string."""
        assert node.parent is not None
        if node.stream is None and node.parent.stream is not None:
            node.stream = node.parent.stream.fork()
            node.stream.push(node.token)
        return node.stream is not None and node.stream.stop is not None
