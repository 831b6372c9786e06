"""The result of `speccheck tasks`, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value


class ScoreInterval(Value):
    """A mean over items, and its confidence interval."""

    mean: float
    low: float
    high: float


class TaskWay(Value):
    """One way to write the greedy answers; `different` of them differ from those without speculation.

    `seconds` is the time of all answers, written in all slots at a time; `first_difference` is a place.
    """

    drafter: str
    tokens: int
    seconds: float
    acceptance: float | None
    different: int
    first_difference: str | None

    @property
    def milliseconds_a_token(self) -> float:
        """The time of all answers over their number of tokens."""
        return 1e3 * self.seconds / self.tokens if self.tokens else 0.0


class TaskScores(Value):
    """Scores of answers with and without speculation; the difference is with minus without, item by item.

    `seeds` is the number of answers to an item, 1 if they are greedy. `p_value` is from a paired randomisation test.
    """

    temperature: float
    seeds: int
    speculating: ScoreInterval
    plain: ScoreInterval
    difference: ScoreInterval
    p_value: float


class TaskFound(Value):
    """The result for one file of rows; `cut_prompts` counts prompts that lost their beginning to fit the context."""

    kind: str
    file: str
    metric: str
    items: int
    max_new_tokens: int
    cut_prompts: int
    ways: tuple[TaskWay, ...]
    scores: tuple[TaskScores, ...]

    @property
    def name(self) -> str:
        """The name that users see: the kind, and the file if its name differs."""
        return self.kind if Path(self.file).stem == self.kind else f"{self.kind}: {self.file}"


class TaskParity(Result):
    """All tasks. `level` is the confidence of each interval; `isolation` says how the network was closed to code."""

    kind: ClassVar[str] = "tasks"

    bundle: str
    slots: int
    confidence: float
    level: float
    isolation: str | None
    tasks: tuple[TaskFound, ...]
    reasons: tuple[str, ...]
    passed: bool

    def sheets(self) -> list[Sheet]:
        """Tables of ids and, if answers were scored, of scores."""
        sheets = [Sheet("greedy answers with and without speculation", _WAYS, tuple(self._ways()), (), keys=2)]
        if any(task.scores for task in self.tasks):
            title = f"scores, with intervals of {self.level:.4g} by bootstrap over items"
            note = "p: of the paired randomisation test that the scores with and without speculation do not differ."
            sheets.append(Sheet(title, _SCORES, tuple(self._scores()), (note,), keys=2))
        verdict = [("same answers", "yes" if self.passed else "no"), ("code ran with", self.isolation)]
        return [*sheets, Sheet.of_figures("verdict", verdict)]

    def _ways(self) -> Iterator[tuple[Cell, ...]]:
        for task in self.tasks:
            plain = task.ways[0]
            for way in task.ways:
                yield (
                    task.name,
                    way.drafter,
                    task.items,
                    None if way is plain else way.different,
                    way.acceptance,
                    way.milliseconds_a_token,
                    f"{plain.seconds / way.seconds:.2f} x" if way is not plain and way.seconds else None,
                )

    def _scores(self) -> Iterator[tuple[Cell, ...]]:
        for task in self.tasks:
            for each in task.scores:
                how = "greedy" if each.temperature == 0 else f"temperature {each.temperature:g}, {each.seeds} seeds"
                scored = (each.plain, each.speculating, each.difference)
                intervals = (f"{value.mean:.4f} [{value.low:.4f}, {value.high:.4f}]" for value in scored)
                yield (task.name, how, task.metric, *intervals, each.p_value)


_WAYS = (
    Column("task"),
    Column("drafter"),
    Column("items"),
    Column("other ids"),
    Column("accepted", ".0%"),
    Column("ms a token", ".2f"),
    Column("speedup"),
)
_SCORES = (*map(Column, ("task", "answers", "metric", "without", "with", "difference")), Column("p", ".3f"))
