"""The server beside the engine: who is asked for what, and what is made of the times at which it comes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench.serve import measure
from mxspec.evaluate.bench.serve.clients import ask_at_once, tokens_per_second
from mxspec.evaluate.bench.serve.result import ServeResult
from mxspec.formats.errors import MxspecError

Specbench = Callable[..., Result]


class Slow:
    """Writes a piece every `seconds`; a long prompt holds up all others for `held` seconds."""

    def __init__(self, seconds: float, held: float = 0.0) -> None:
        self.seconds, self.held = seconds, held
        self.asked: list[tuple[int, ...]] = []
        self._busy = threading.Lock()

    def __call__(self, prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
        self.asked.append(tuple(prompt))
        if len(prompt) > 10:
            with self._busy:
                time.sleep(self.held)
        for number in range(new_tokens):
            time.sleep(self.seconds)
            with self._busy:
                yield number


def test_each_client_asks_for_one_text_after_the_other_beside_all_others() -> None:
    writer = Slow(0.01)
    heard = ask_at_once(writer, [[[1], [2]], [[3], [4]]], 10)
    assert {asked[:1] for asked in writer.asked[:2]} == {(1,), (3,)}
    assert [len(client) for client in heard] == [2, 2]
    for first, second in heard:
        assert first.asked < first.pieces[0] < first.pieces[-1] < second.asked
    began, ended = min(client[0].asked for client in heard), max(client[1].pieces[-1] for client in heard)
    assert tokens_per_second(heard, 10) == pytest.approx(40 / (ended - began))


def test_a_clients_error_is_raised() -> None:
    def broken(prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
        raise MxspecError("gone")

    with pytest.raises(MxspecError, match="gone"):
        ask_at_once(broken, [[[1]], [[2]]], 4)


def test_a_long_prompt_shows_in_the_gaps_of_the_others() -> None:
    before, during, first = measure._join(Slow(0.004, held=0.2), [[1], [2], [3]], list(range(1000)), 30)
    assert 0.003 < before < during
    assert during > 0.15
    assert first > 0.2


def test_a_text_that_begins_late_is_waited_for() -> None:
    class Late(Slow):
        def __call__(self, prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
            if tuple(prompt) == (3,):
                time.sleep(0.1)  # longer than the others take for the first half of their texts
            yield from super().__call__(prompt, new_tokens, plain)

    before, _, _ = measure._join(Late(0.004), [[1], [2], [3]], list(range(1000)), 20)
    assert before > 0.003


def test_a_server_is_timed_beside_the_engine(demo_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--new-tokens", "96", "--repetitions", "1", "--threads", "2", "--json")
    result = specbench("serve", str(demo_bundles["real"]), *options)
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    (sheet,) = ServeResult.model_validate(got).sheets()
    assert len(sheet.rows) == len(got["rows"])
    assert [row["clients"] for row in got["rows"]] == [1, 8]
    assert all(row["ratio"] > 0 for row in got["rows"])
    assert got["ready_seconds"] > 0
    assert got["joining"]["first_token_seconds"] > 0


def test_a_context_that_is_too_short_is_refused(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    result = specbench("serve", str(tiny_bundles["near"]))
    assert result.exit_code == 1
    assert "its context is 96 tokens, but serve takes 1,016" in result.stderr
