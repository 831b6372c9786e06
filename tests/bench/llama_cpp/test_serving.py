"""Servers beside servers, with those that only pretend."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.llama_cpp.serving import Row, ServingResult, measure


class Pretended:
    opened = 0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @contextmanager
    def open(self) -> Iterator[Pretended]:
        assert Pretended.opened == 0  # nobody else is open
        Pretended.opened += 1
        yield self
        Pretended.opened -= 1

    def __call__(self, prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
        for number in range(new_tokens):
            time.sleep(self.seconds)
            yield number


def test_servers_alternate_and_their_clients_are_counted_together() -> None:
    servers = {("llama.cpp", "Q6_K"): Pretended(0.01).open, ("mxspec", "E2M3"): Pretended(0.005).open}
    said: list[str] = []
    found = measure(servers, [[[1], [2]], [[3], [4]]], 5, 2, said.append)
    assert [text.split(":")[0] for text in said] == ["llama.cpp Q6_K", "mxspec E2M3"] * 2
    assert [len(trials) for trials in found.values()] == [2, 2]
    slow, fast = found.values()
    assert fast[0] > slow[0]


def test_ours_are_set_beside_each_of_the_peers() -> None:
    rows = (
        Row(program="llama.cpp", target="Q6_K", tokens_per_second=10, trials_tokens_per_second=(8, 12)),
        Row(program="mxspec", target="E2M3", tokens_per_second=30, trials_tokens_per_second=(32, 24)),
    )
    result = ServingResult(peer="p", threads=2, clients=8, answers=2, prompt_tokens=64, new_tokens=5, rows=rows)
    (sheet,) = result.sheets()
    assert sheet.headers == ["server", "tok/s", "over Q6_K"]
    assert sheet.lines == [["llama.cpp Q6_K", "10.0", ""], ["mxspec E2M3", "30.0", "3.00 x"]]
