"""A drafter that raises or proposes nonsense ends its own text, with one line; the others write their bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.drafters.drafter import Drafter, Wanted
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Finished, Token
from mxspec.runtime.sampling.distribution import Distribution

VOCAB = 30
PROMPT = [3, 1, 4, 1, 5]
CALLS = ("begin", "limit", "lag", "read", "propose", "observe", "end")
BESIDE: list[dict[str, Any]] = [
    {"k": 3},
    {"k": 0},
    {"k": "auto"},
    {"k": 2, "temperature": 1.0, "seed": 5},
    {"k": 4, "temperature": 0.8, "seed": 6, "verifier": "match", "top_k": 9},
]


class Own(Drafter):
    """Guesses that the last token comes again, each from a point; `broken` names the call that raises."""

    name = "own"
    cheap = False

    def __init__(self, broken: str = "", after: int = 0) -> None:
        self.ended = 0
        self._unread = 6
        if broken:
            call, left = getattr(self, broken), [after]

            def fail(*arguments: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise RuntimeError("out of\nmemory")
                return call(*arguments)

            setattr(self, broken, fail)

    def limit(self, length: int, source: int = 0) -> int:
        return 9

    def lag(self, tokens: Sequence[int], slot: Any) -> int:
        return max(self._unread, 0)

    def read(self, pieces: Sequence[tuple[Sequence[int], Any, int]]) -> None:
        self._unread -= sum(count for _, _, count in pieces)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            for _ in range(want.k):
                want.add(want.tokens[-1], Distribution.point(want.tokens[-1]), self.name)
        return [(len(wanted), 0.0)]

    def end(self, memory: Any, tokens: Sequence[int]) -> None:
        self.ended += 1


def tokens_of(events: Sequence[Any]) -> list[int]:
    assert isinstance(events[-1], Finished)
    return [event.id for event in events if isinstance(event, Token)]


def run_beside(toys: Any, drafter: Any, **settings: Any) -> list[Any]:
    """The events of a text with this drafter, among others that must write what they write alone."""
    scheduler, others = toys.scheduler(*toys.pair(VOCAB, 8)), []
    for place, beside in enumerate(BESIDE):
        if place == 2:
            box = scheduler.write(PROMPT, drafter=drafter, **{"k": 2, "max_new_tokens": 9, **settings})
        how = {"max_new_tokens": 12 + place, **beside}
        others.append((how, scheduler.write([*PROMPT, place], **how)))
    for _ in range(200):
        scheduler.step()
    assert not scheduler.busy
    assert scheduler.free == 8
    for place, (how, other) in enumerate(others):
        assert tokens_of(other) == tokens_of(list(toys.generate(*toys.pair(VOCAB, 1), [*PROMPT, place], **how)))
    assert sum(isinstance(event, Finished | BaseException) for event in box) == 1
    return list(box)


@pytest.mark.parametrize("k", [2, "auto"])
def test_a_drafter_that_keeps_the_rules_writes_the_targets_text(toys: Any, k: Any) -> None:
    drafter = Own()
    plain = tokens_of(list(toys.generate(toys.pair(VOCAB, 1)[0], None, PROMPT, max_new_tokens=9)))
    assert tokens_of(run_beside(toys, drafter, k=k)) == plain
    assert drafter.ended == 1


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_raises_ends_its_own_text_with_one_line(toys: Any, call: str, after: int) -> None:
    if after and call in ("begin", "read", "end"):
        return  # one call a text
    drafter = Own(call, after)
    events = run_beside(toys, drafter)
    assert isinstance(events[-1], GenerationError)
    assert str(events[-1]) == f"drafter own: {call} raised RuntimeError: out of memory"
    assert isinstance(events[-1].__cause__, RuntimeError)
    assert drafter.ended == (call not in ("begin", "end"))  # of a text that was begun the drafter hears the end, once


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_raises_where_k_is_chosen(toys: Any, call: str) -> None:
    events = run_beside(toys, Own(call), k="auto", max_new_tokens=30)
    if not isinstance(events[-1], Finished):  # a K of 0 may never have asked for it
        assert str(events[-1]) == f"drafter own: {call} raised RuntimeError: out of memory"


def test_an_error_in_end_hides_no_earlier_error(toys: Any) -> None:
    drafter = Own("end")
    drafter.propose = None  # type: ignore[assignment,method-assign]
    (*_, error) = run_beside(toys, drafter)
    assert "propose raised TypeError" in str(error)


def test_a_cancelled_text_whose_drafter_cannot_end_is_over_all_the_same(toys: Any) -> None:
    scheduler = toys.scheduler(*toys.pair(VOCAB, 1))
    box, other = scheduler.write(PROMPT, drafter=Own("end"), k=2), scheduler.write(PROMPT, k=2, max_new_tokens=4)
    scheduler.step()
    box.text.cancelled = True
    scheduler.run()
    assert str(box[-1]) == "drafter own: end raised RuntimeError: out of memory"
    assert len(tokens_of(other)) == 4


def add_plainly(want: Wanted, *tokens: Any, origins: Any = None, distributions: Any = None) -> None:
    want.proposal.tokens.extend(tokens)
    want.proposal.origins.extend(["own"] * len(tokens) if origins is None else origins)
    certain = [Distribution.point(int(token)) for token in tokens]
    want.proposal.distributions.extend(certain if distributions is None else distributions)


@pytest.mark.parametrize(
    ("propose", "says"),
    [
        (lambda want: add_plainly(want, VOCAB), "proposed token 30, expected ids from 0 to 29"),
        (lambda want: add_plainly(want, 1, -1), "proposed token -1, expected ids from 0 to 29"),
        (lambda want: add_plainly(want, 1.0), "proposed 1.0, expected a token id"),
        (lambda want: add_plainly(want, *[1] * 50), "proposed 50 tokens, expected at most k = 2"),
        (lambda want: add_plainly(want, 1, origins=[]), "gave 0 origins for 1 tokens, expected one each"),
        (lambda want: add_plainly(want, 1, distributions=[]), "gave 0 distributions for 1 tokens, expected one each"),
        (
            lambda want: add_plainly(want, 1, distributions=[Distribution.point(2)]),
            "proposed token 1 with a distribution that never draws it",
        ),
        (
            lambda want: add_plainly(want, 1, distributions=[0.5]),
            "proposed token 1 with a distribution that never draws it",
        ),
    ],
)
def test_a_proposal_that_cannot_be_scored_ends_its_own_text(
    toys: Any, propose: Callable[[Wanted], None], says: str
) -> None:
    class Wrong(Own):
        def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
            for want in wanted:
                propose(want)
            return []

    (*_, error) = run_beside(toys, Wrong(), temperature=1.0, seed=3)
    assert isinstance(error, GenerationError)
    assert str(error) == f"drafter own: {says}"


@pytest.mark.parametrize(("call", "value"), [("limit", None), ("lag", "many"), ("propose", None)])
def test_a_call_that_returns_nonsense_ends_its_own_text(toys: Any, call: str, value: Any) -> None:
    drafter = Own()
    setattr(drafter, call, lambda *_: value)
    (*_, error) = run_beside(toys, drafter)
    assert str(error).startswith(f"drafter own: {call} raised TypeError")


def test_an_engine_works_after_each_of_them(tiny_bundles: dict[str, Path]) -> None:
    with Engine(tiny_bundles["near"], slots=2) as engine:
        alone = engine.generate("hello", k=0, max_new_tokens=12).result().token_ids
        for call in CALLS:
            beside = engine.generate("hello", k=2, max_new_tokens=12)
            with pytest.raises(GenerationError, match=rf"^drafter own: {call} raised RuntimeError: out of memory$"):
                engine.generate("hello", drafter=Own(call), k=2, max_new_tokens=12).result()
            assert beside.result().token_ids == alone
