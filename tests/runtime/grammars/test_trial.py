"""Grammars that would take minutes, all memory or the whole stack are refused in a line, and nothing else happens."""

from __future__ import annotations

import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars import trial as trial_module
from mxspec.runtime.grammars import trial_child
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.grammars.trial import LONGEST, Trial
from mxspec.runtime.guarded.process_quota import GivenUpError

from .test_grammar import EOS, TOKENIZERS

TOKENIZER = TOKENIZERS["byte-level"]
SLOW = {"type": "integer", "multipleOf": 999983}  # 19 seconds and 400 MB


def references(count: int, *, through: str | None = None) -> dict[str, Any]:
    """A chain of definitions, each of which refers to the next, by itself or through a property."""

    def link(i: int) -> dict[str, Any]:
        next_ = {"$ref": f"#/$defs/a{i + 1}"}
        return next_ if through is None else {"type": "object", "properties": {through: next_}, "required": [through]}

    links = {f"a{i}": link(i) for i in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{count}": {"type": "string"}}}


def rules(count: int) -> str:
    """A Lark grammar whose rules each begin with the next."""
    lines = [f'r{i}: r{i + 1} "x"' for i in range(count)]
    return "\n".join(["start: r0", *lines, f'r{count}: "a"'])


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    trial = Trial(TOKENIZER, [EOS], TOKENIZER.get_vocab_size())
    yield trial
    trial.close()


@pytest.mark.parametrize(
    ("hurtful", "why"),
    [
        (Grammar.json_schema(references(2500)), "nested too deep"),
        (Grammar.json_schema(references(1500, through="x")), "nested too deep"),
        (Grammar.lark(rules(5000)), "nested too deep"),
        (Grammar.json_schema(SLOW), "too much time|more than 256 MB"),
        (Grammar.json_schema({"enum": ["x" * LONGEST]}), "expected at most 524,288"),
        (Grammar.regex("("), "."),
        (Grammar.json_schema({"$ref": "#"}), "."),
    ],
)
def test_a_hurtful_grammar_is_refused_in_a_line(trial: Trial, hurtful: Grammar, why: str) -> None:
    for _ in range(2):  # the second time without a process
        with pytest.raises(GenerationError, match=rf"^grammar: [^\n]*({why})[^\n]*$"):
            trial.compile(hurtful)
    assert trial.compile(Grammar.regex("ab")).forced(())


@pytest.mark.parametrize(
    "large",
    [
        Grammar.json_schema({"enum": [f"value {i}" for i in range(2000)]}),
        Grammar.json_schema(references(60, through="x")),
        Grammar.lark(rules(60)),
        Grammar.regex("[a-z]{1,500}"),
    ],
)
def test_a_large_grammar_is_compiled(trial: Trial, large: Grammar) -> None:
    assert trial.compile(large).mask(()) is not None


def test_who_gives_up_does_not_wait(trial: Trial) -> None:
    given_up = threading.Event()
    ends: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            trial.check(Grammar.json_schema(SLOW | {"minimum": number}), given_up.is_set)
        except (GivenUpError, GenerationError) as error:
            ends.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    trial.check(Grammar.regex("beside the others"))
    given_up.set()
    for thread in threads:
        thread.join()
    assert len(ends) == 4
    assert trial._forks is not None
    (parent,) = trial._forks._parent
    while subprocess.run(["pgrep", "-P", str(parent.process.pid)], capture_output=True).stdout:
        time.sleep(0.01)  # each has ended with its request


def test_a_quick_grammar_does_not_wait_for_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """More slow ones than there are processes: each is soon set aside, and who comes last is next."""
    monkeypatch.setattr(trial_module, "QUICK_SECONDS", 0.02)
    trial = Trial(TOKENIZER, [EOS], TOKENIZER.get_vocab_size())
    trial.check(Grammar.regex("which starts the process"))
    slow = [Grammar.json_schema({"enum": [f"{n} value {i}" for i in range(20_000)]}) for n in range(30)]
    done: list[bool] = []

    def ask(grammar: Grammar) -> None:
        done.append(trial.check(grammar).slow)

    threads = [threading.Thread(target=ask, args=(grammar,)) for grammar in slow]
    for thread in threads:
        thread.start()
    before = len(done)  # a busy machine may end some while it starts the others
    quick = trial.check(Grammar.regex("among slow ones"))
    assert len(done) - before < 8 or quick.slow  # on a machine where it is slow, it waits
    for thread in threads:
        thread.join()
    assert len(done) == 30
    assert any(done)  # one takes 0.04 to 0.2 seconds of a processor
    trial.close()


def test_a_quick_grammar_is_compiled_beside_slow_ones(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Grammar.regex("meanwhile")
    assert not trial.check(quick).slow  # else it would wait for ever below
    monkeypatch.setattr(trial_module, "QUICK_SECONDS", 0.02)
    slow = Grammar.json_schema({"enum": [f"value {i}" for i in range(20_000)]})
    assert trial.check(slow).slow
    waiting = threading.Thread(target=trial.compile, args=(slow,))
    with trial._compiling[True].entered(lambda: False):
        waiting.start()
        assert trial.compile(quick).forced(())
        assert waiting.is_alive()
    waiting.join()


def test_a_process_that_was_killed_is_replaced(trial: Trial) -> None:
    trial.check(Grammar.regex("one"))
    assert trial._forks is not None
    (parent,) = trial._forks._parent
    parent.process.kill()
    parent.process.wait()
    trial.check(Grammar.regex("two"))


def test_a_grammar_that_the_process_accepts_fits_a_stack_of_the_same_size(trial: Trial) -> None:
    """The deepest chain that it lets through is compiled, stepped and dropped in a thread with no larger stack."""
    low, high = 60, 1500
    while high - low > 8:
        middle = (low + high) // 2
        try:
            trial.check(Grammar.json_schema(references(middle, through="x")))
            low = middle
        except GenerationError:
            high = middle
    grammar = Grammar.json_schema(references(low, through="x"))
    done: list[bool] = []

    def use() -> None:
        matcher = grammar.compile(TOKENIZER, [EOS], TOKENIZER.get_vocab_size())
        matcher.mask(())
        matcher.copy().forced(())
        del matcher
        done.append(True)

    before = threading.stack_size(trial_child.BOUNDS.stack_bytes + (64 << 10))  # which pthreads keeps for itself
    try:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert done
    least, _ = resource.getrlimit(resource.RLIMIT_STACK)
    assert least == resource.RLIM_INFINITY or least >= 2 * trial_child.BOUNDS.stack_bytes
