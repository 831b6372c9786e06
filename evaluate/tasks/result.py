"""What `speccheck tasks` found, and how it reads as tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from mxspec.evaluate.result import Result, Value


class Interval(Value):
    """A mean over items, and what it lies between."""

    mean: float
    low: float
    high: float


class Way(Value):
    """One way to write the greedy answers; `different` of them are not the ids written without speculation.

    `seconds` is the time of all answers together, as many at a time as there are slots; `first_difference` says where.
    """

    drafter: str
    tokens: int
    seconds: float
    acceptance: float | None
    different: int
    first_difference: str | None

    @property
    def milliseconds_a_token(self) -> float:
        """Of all texts together."""
        return 1e3 * self.seconds / self.tokens if self.tokens else 0.0


class Scores(Value):
    """Answers with speculation and without; the difference is with less without, item by item.

    `seeds` answers an item, 1 where they are greedy. `p_value` is that of the paired randomisation test.
    """

    temperature: float
    seeds: int
    speculating: Interval
    plain: Interval
    difference: Interval
    p_value: float


class TaskFound(Value):
    """One file of rows; `cut_prompts` lost their beginning, for want of context."""

    kind: str
    file: str
    metric: str
    items: int
    max_new_tokens: int
    cut_prompts: int
    ways: tuple[Way, ...]
    scores: tuple[Scores, ...]

    @property
    def name(self) -> str:
        """For people: the kind, and the file where its name says more."""
        return self.kind if Path(self.file).stem == self.kind else f"{self.kind}: {self.file}"


class TaskParity(Result):
    """All tasks. `level` is the confidence of each interval; `isolation`: how code that was run had no network."""

    bundle: str
    slots: int
    confidence: float
    level: float
    isolation: str | None
    tasks: tuple[TaskFound, ...]
    reasons: tuple[str, ...]
    passed: bool

    def tables(self) -> list[Table]:
        """Ids, then scores where there are any."""
        tables = [_table("greedy answers with and without speculation", _WAYS, self._ways())]
        if any(task.scores for task in self.tasks):
            title = f"scores, with intervals of {self.level:.4g} by bootstrap over items"
            tables.append(_table(title, _SCORES, self._scores()))
        verdict = [("same answers", "yes" if self.passed else "no")]
        if self.isolation is not None:
            verdict.append(("code ran with", self.isolation))
        tables.append(_table("verdict", ("", ""), iter(verdict)))
        return tables

    def _ways(self) -> Iterator[tuple[str, ...]]:
        for task in self.tasks:
            plain = task.ways[0]
            for way in task.ways:
                yield (
                    task.name,
                    way.drafter,
                    f"{task.items}",
                    f"{way.different}" if way is not plain else "",
                    "" if way.acceptance is None else f"{way.acceptance:.0%}",
                    f"{way.milliseconds_a_token:.2f}",
                    f"{plain.seconds / way.seconds:.2f} x" if way is not plain and way.seconds else "",
                )

    def _scores(self) -> Iterator[tuple[str, ...]]:
        for task in self.tasks:
            for each in task.scores:
                how = "greedy" if each.temperature == 0 else f"temperature {each.temperature:g}, {each.seeds} seeds"
                yield (
                    task.name,
                    how,
                    task.metric,
                    _interval(each.plain),
                    _interval(each.speculating),
                    _interval(each.difference),
                    f"{each.p_value:.3f}",
                )


_WAYS = ("task", "drafter", "items", "other ids", "accepted", "ms a token", "speedup")
_SCORES = ("task", "answers", "metric", "without", "with", "difference", "p")


def _interval(value: Interval) -> str:
    return f"{value.mean:.4f} [{value.low:.4f}, {value.high:.4f}]"


def _table(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index > 1 else "left", overflow="fold", no_wrap=index < 3)
    for row in rows:
        table.add_row(*row)
    return table
