"""The tree of the texts of a search; each node is a token."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.sampling.logprobs import Logprob
from mxspec.runtime.text.stream import TextStream


class Node:
    """A token after those of its parent; the root is the prompt. Equal texts share a node."""

    __slots__ = ("children", "drafted", "length", "logprob", "parent", "stream", "token")

    def __init__(self, parent: Node | None, token: int, length: int) -> None:
        self.parent = parent
        self.token = token
        self.length = length  # tokens of prompt and answer, including this one
        self.children: dict[int, Node] = {}
        self.drafted = False  # a draft guessed it, and the target scored it as a guess
        self.logprob: Logprob | None = None  # if log-probabilities are requested
        self.stream: TextStream | None = None  # if stop strings may end the text: its shown text

    @classmethod
    def root(cls, length: int) -> Node:
        """The root for a prompt of `length` tokens."""
        return cls(None, -1, length)

    def child(self, token: int) -> Node:
        """The text with one more token."""
        if token not in self.children:
            self.children[token] = Node(self, token, self.length + 1)
        return self.children[token]

    def path(self, above: Node | None = None) -> list[Node]:
        """The nodes after `above`, an ancestor or the node itself, down to this node; by default after the root."""
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
    """The longest common prefix of these texts: one of the nodes, or an ancestor of all."""
    level = set(nodes)
    while len(level) > 1:
        deepest = max(node.length for node in level)
        level = {node.parent if node.length == deepest and node.parent is not None else node for node in level}
    return level.pop()
