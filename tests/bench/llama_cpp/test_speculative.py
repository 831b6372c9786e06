"""What is timed when, and what is chosen, with programs that only pretend to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from bench.llama_cpp.answers import Answer, K
from bench.llama_cpp.speculative import Chosen, Entry, Prompts, choose, measure
from mxspec.formats.errors import MxspecError

PROMPTS = Prompts(tuning=[[9]], measured=[[1], [2]], new_tokens=4)


@dataclass
class Pretended:
    """Writes its prompt plus `shift`, a token in `seconds`, and notes in `calls` that it did."""

    name: str
    calls: list[tuple[str, int]]
    seconds: float = 1.0
    shift: int = 0
    opened: list[str] = field(default_factory=list)
    read: list[int] = field(default_factory=list)  # first tokens of its prompts

    @contextmanager
    def open(self) -> Iterator[Pretended]:
        self.opened.append(self.name)
        yield self
        self.opened.remove(self.name)

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer:
        assert self.opened == [self.name]  # nobody else is open
        self.calls.append((self.name, new_tokens))
        self.read.append(prompt[0])
        tokens = tuple(prompt[0] + self.shift + i for i in range(new_tokens))
        return Answer(tokens, self.seconds * (new_tokens - 1), 2, 1)


def entry(name: str, draft: str | None, tried: dict[tuple[str, K], Pretended]) -> Entry:
    return Entry("llama.cpp", name, 1, draft, tried)


def test_lines_alternate_within_each_repetition_and_texts_are_compared_with_their_own_target() -> None:
    calls: list[tuple[str, int]] = []
    opened: list[str] = []
    lines = [
        Chosen(entry("a", None, {("", 0): Pretended("a plain", calls, opened=opened)}), "", 0),
        Chosen(entry("a", "d", {("F16", 3): Pretended("a drafted", calls, opened=opened)}), "F16", 3),
        Chosen(entry("b", None, {("", 0): Pretended("b plain", calls, shift=5, opened=opened)}), "", 0),
        Chosen(entry("b", "d", {("F16", 3): Pretended("b drafted", calls, opened=opened)}), "F16", 3),
    ]
    found = measure(lines, PROMPTS, 2, lambda text: None)
    names = [name for name, tokens in calls if tokens == PROMPTS.new_tokens]
    once = [name for name in ("a plain", "a drafted", "b plain", "b drafted") for _ in PROMPTS.measured]
    assert names == once * 2
    assert [[trial.same_text for trial in line] for line in found] == [[None] * 4, [True] * 4, [None] * 4, [False] * 4]
    assert [(t.prompt, t.repetition, t.tokens, t.seconds) for t in found[0]] == [
        (0, 0, 3, 3.0),
        (1, 0, 3, 3.0),
        (0, 1, 3, 3.0),
        (1, 1, 3, 3.0),
    ]


def test_the_fastest_setting_is_chosen_on_prompts_that_are_not_measured() -> None:
    calls: list[tuple[str, int]] = []
    seconds: dict[tuple[str, K], float] = {
        ("F16", 2): 5.0,
        ("F16", 3): 4.0,
        ("F16", 8): 0.1,  # never tried: its format was slower at 3
        ("Q8_0", 2): 3.0,
        ("Q8_0", 3): 3.5,
        ("Q8_0", 8): 6.0,
    }
    tried = {setting: Pretended(str(setting), calls, s) for setting, s in seconds.items()}
    chosen = choose(entry("a", "d", tried), PROMPTS, lambda text: None)
    assert (chosen.format, chosen.k) == ("Q8_0", 2)
    assert str(("F16", 8)) not in {name for name, _ in calls}
    assert {prompt for program in tried.values() for prompt in program.read} == {PROMPTS.tuning[0][0]}


def test_k_goes_up_or_down_as_long_as_it_gets_faster_and_auto_is_always_tried() -> None:
    rates: dict[K, float] = {2: 5.0, 3: 4.0, 4: 3.0, 6: 3.5, 8: 0.1, "auto": 3.2}
    calls: list[tuple[str, int]] = []
    tried: dict[tuple[str, K], Pretended] = {("F16", k): Pretended(str(k), calls, rates[k]) for k in rates}
    assert choose(entry("a", "d", tried), PROMPTS, lambda text: None).k == 4
    assert [name for name, tokens in calls if tokens == PROMPTS.new_tokens] == ["3", "4", "6", "2", "auto"]


def test_prompts_do_not_overlap() -> None:
    prompts = Prompts.of(range(100), tuning=2, measured=3, length=20, new_tokens=4)
    assert sorted(token for prompt in (*prompts.tuning, *prompts.measured) for token in prompt) == list(range(100))
    with pytest.raises(MxspecError, match="got 99 tokens, expected 100"):
        Prompts.of(range(99), tuning=2, measured=3, length=20, new_tokens=4)
