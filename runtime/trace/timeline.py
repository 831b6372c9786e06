"""Where the time of a text's rounds went, beside plain decoding (Leviathan et al. 2023, figure 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

PARTS = ("draft", "target", "rest")


@dataclass(frozen=True, slots=True)
class Block:
    """A round on the time axis: where it begins and how long its parts are, in hundredths of the axis."""

    number: int
    start: float
    draft: float
    target: float
    rest: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """From the first token on. `plain_seconds` is what as many plain steps take, None where that is not known."""

    blocks: list[Block]
    seconds: float
    plain_seconds: float | None
    plain_steps: int
    parts: dict[str, float]  # seconds by part

    @property
    def axis(self) -> float:
        """Length of the time axis in seconds."""
        return max(self.seconds, self.plain_seconds or 0.0) or 1.0

    @property
    def speedup(self) -> float | None:
        """The speed relative to plain decoding."""
        return self.plain_seconds / self.seconds if self.plain_seconds and self.seconds else None

    def stairs(self) -> str:
        """Tokens over time as points of a line, both axes 0 … 100."""
        points, tokens = [(0.0, 0.0)], 0
        for block in self.blocks:
            end = block.start + block.draft + block.target + block.rest
            points.append((end, self._height(tokens)))
            tokens += block.tokens
            points.append((end, self._height(tokens)))
        return " ".join(f"{x:.2f},{100 - y:.2f}" for x, y in points)

    def _height(self, tokens: int) -> float:
        return 100.0 * tokens / max(self.plain_steps, 1)


def timeline(rounds: Sequence[Mapping[str, Any]], plain_step_seconds: float | None) -> Timeline:
    """The timeline of a text's rounds, except for the first, which reads the prompt."""
    rest = rounds[1:]
    parts = dict.fromkeys(PARTS, 0.0)
    for one in rest:
        for name, seconds in zip(PARTS, _parts(one), strict=True):
            parts[name] += seconds
    steps = sum(_tokens(one) for one in rest)
    empty = Timeline([], sum(parts.values()), plain_step_seconds and plain_step_seconds * steps, steps, parts)
    return replace(empty, blocks=list(_blocks(rest, 100 / empty.axis)))


def _blocks(rounds: Sequence[Mapping[str, Any]], scale: float) -> Iterator[Block]:
    start = 0.0
    for one in rounds:
        draft, target, rest = (scale * seconds for seconds in _parts(one))
        yield Block(one["round"], start, draft, target, rest, _tokens(one))
        start += draft + target + rest


def _parts(one: Mapping[str, Any]) -> tuple[float, float, float]:
    draft, target = float(one["draft_s"]), float(one["target_s"])
    return draft, target, max(float(one["seconds"]) - draft - target, 0.0)


def _tokens(one: Mapping[str, Any]) -> int:
    kept = [guess for guess in one["drafted"] if guess["decision"] == "accepted"]
    return len(kept) + (one["next"] is not None)
