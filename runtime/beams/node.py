"""The tree of the texts that a search has found, one token a node."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.sampling.logprobs import Logprob
from mxspec.runtime.text.stream import TextStream


class Node:
    """A token after those of its parent; the root is the prompt. Two texts that are equal are one node."""

    __slots__ = ("children", "drafted", "length", "logprob", "parent", "stream", "token")

    def __init__(self, parent: Node | None, token: int, length: int) -> None:
        self.parent = parent
        self.token = token
        self.length = length  # tokens of prompt and answer, this one included
        self.children: dict[int, Node] = {}
        self.drafted = False  # a draft has guessed it, and its logits were asked for with the guess
        self.logprob: Logprob | None = None  # where log-probabilities are asked for
        self.stream: TextStream | None = None  # of a text that stop strings may end: what it has shown

    @classmethod
    def root(cls, length: int) -> Node:
        """A prompt of `length` tokens."""
        return cls(None, -1, length)

    def child(self, token: int) -> Node:
        """The text with one token more."""
        if token not in self.children:
            self.children[token] = Node(self, token, self.length + 1)
        return self.children[token]

    def path(self, above: Node | None = None) -> list[Node]:
        """The nodes after `above`, one of its ancestors or itself, down to this one; after the root by default."""
        nodes: list[Node] = []
        node: Node = self
        while node is not above and node.parent is not None:
            nodes.append(node)
            node = node.parent
        assert above is None or node is above, "not above this node"
        return nodes[::-1]

    def tokens(self, above: Node | None = None) -> list[int]:
        """The tokens of that path."""
        return [node.token for node in self.path(above)]


def common_ancestor(nodes: Sequence[Node]) -> Node:
    """The longest text that all of these begin with: one of them, or a node above all."""
    level = set(nodes)
    while len(level) > 1:
        deepest = max(node.length for node in level)
        level = {node.parent if node.length == deepest and node.parent is not None else node for node in level}
    return level.pop()
