"""What is timed after what, and what is counted."""

from __future__ import annotations

from mxspec.evaluate.bench.harness import alternate, trials_of


def test_variants_answer_each_prompt_in_turn_after_one_that_is_not_counted() -> None:
    said: list[str] = []
    variants = [lambda prompt, repetition, name=name: f"{name}{prompt}{repetition}" for name in "ab"]
    turns = list(alternate(variants, ["x", "y"], 2, said.append, warm=True))
    assert turns == [(r, p, (f"a{prompt}{r}", f"b{prompt}{r}")) for r in (0, 1) for p, prompt in enumerate("xy")]
    assert said[0] == "repetition 0 of 2, prompt 1 of 2"
    assert said[1:] == [f"repetition {r} of 2, prompt {p} of 2" for r in (1, 2) for p in (1, 2)]


def test_each_case_is_tried_once_in_each_repetition() -> None:
    said: list[str] = []
    asked: list[str] = []
    found = trials_of("ab", lambda case: asked.append(case) or len(asked), 2, said.append, label=str.upper)
    assert found == {"a": [1, 3], "b": [2, 4]}
    assert said == ["repetition 1 of 2: A", "repetition 1 of 2: B", "repetition 2 of 2: A", "repetition 2 of 2: B"]


def test_a_warm_repetition_is_not_counted_and_every_other_one_begins_at_the_end() -> None:
    asked: list[str] = []
    found = trials_of("ab", lambda case: asked.append(case) or len(asked), 3, warm=True, both_ways=True)
    assert "".join(asked) == "ba" + "ab" + "ba" + "ab"
    assert found == {"a": [3, 6, 7], "b": [4, 5, 8]}
