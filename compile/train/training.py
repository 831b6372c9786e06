"""Train a head, keep the best so far, and go on after a kill with the same numbers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mxspec.compile.train.examples import Examples
from mxspec.compile.train.head_file import Start
from mxspec.compile.train.lesson import Acceptance, Lesson
from mxspec.runtime.memory import trim

BATCH = 2  # texts of a step: after as many texts, more steps taught more than larger ones
PASSES = 12  # over all texts, if nothing ends it before
PATIENCE = 3  # passes without a better head
SAVE_SECONDS = 120.0
TRIM_STEPS = 8  # after which free memory is given back: texts of many lengths leave gaps that the allocator keeps
WARM_UP = 0.04  # of all steps
CLIP = 0.5  # of the gradient's norm, as in EAGLE's own training
_BFLOAT16_PRODUCTS = ("amx_bf16", "avx512_bf16")  # names of torch.cpu.get_capabilities()
_BETAS, _DECAY = (0.9, 0.95), 0.01

Report = Callable[[int, float | None, Acceptance], object]  # passes, loss of a token since the last, acceptance


def _fast_products() -> torch.autocast:
    """Matrix products in bfloat16 where the processor multiplies it faster than float32; else in float32."""
    known = torch.cpu.get_capabilities()
    return torch.autocast("cpu", torch.bfloat16, enabled=any(known.get(name, False) for name in _BFLOAT16_PRODUCTS))


def learning_rate(width: int) -> float:
    """The largest rate for a head of this width: 1e-3 at 576, 1.5e-4 at 4096."""
    return min(4e-3, 0.6 / width)


@dataclass(slots=True)
class Progress:
    """Steps done of all, the best held-out tokens a round so far, and passes since then."""

    steps: int
    done: int = 0
    best: float = 0.0
    without: int = 0


class Training:
    """A head in training; `place` is the file that a killed run goes on from."""

    def __init__(self, start: Start, examples: Examples, place: Path, seed: int) -> None:
        self._head, self._examples, self._place, self._seed = start.head, examples, place, seed
        start.head.embed_tokens.requires_grad_(False)
        start.head.train()
        self._token_of = torch.from_numpy(start.ids)
        self._row_of = torch.full((start.head.config.vocab_size,), -1).index_copy_(
            0, self._token_of, torch.arange(len(start.ids))
        )
        self._values = [value for value in start.head.parameters() if value.requires_grad]
        self._rate = learning_rate(start.head.config.hidden_size)
        self._optimizer = torch.optim.AdamW(self._values, lr=self._rate, betas=_BETAS, weight_decay=_DECAY, fused=True)
        self._best: dict[str, Tensor] = {}

    def run(self, taught: Sequence[int], held_out: Sequence[int], seconds: float, report: Report) -> dict[str, Tensor]:
        """The best weights by held-out acceptance, those at the start included, after at most about `seconds`."""
        began = time.monotonic()
        a_pass = math.ceil(len(taught) / BATCH)
        progress, losses = self._restored(), list[float]()
        if progress is None:
            progress = Progress(PASSES * a_pass)
            self._judge(held_out, progress, 0, losses, report)
        saved = time.monotonic()
        while progress.done < progress.steps and progress.without < PATIENCE:
            passed = (time.monotonic() - began) / seconds
            if losses and passed > 1:
                break
            rate = self._rate_at(max((progress.done + 1) / progress.steps, passed))
            losses.append(self._step(self._batch(taught, progress.done, a_pass), rate))
            progress.done += 1
            if progress.done % TRIM_STEPS == 0:
                trim()
            if progress.done % a_pass == 0 or progress.done == progress.steps:
                self._judge(held_out, progress, math.ceil(progress.done / a_pass), losses, report)
            if time.monotonic() - saved > SAVE_SECONDS:
                self._save(progress)
                saved = time.monotonic()
        if losses:
            self._judge(held_out, progress, progress.done // a_pass, losses, report)
        return self._best

    def _batch(self, taught: Sequence[int], step: int, a_pass: int) -> list[int]:
        number, first = divmod(step, a_pass)
        order = np.random.default_rng([self._seed, number]).permutation(len(taught))
        return [taught[i] for i in order[first * BATCH : (first + 1) * BATCH]]

    def _rate_at(self, share: float) -> float:
        """Rises, then falls as a cosine does; `share` is of all steps or of the time, whichever is further."""
        return self._rate * min(1.0, share / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

    def _step(self, numbers: Sequence[int], rate: float) -> float:
        loss = self._gradient(numbers)
        torch.nn.utils.clip_grad_norm_(self._values, CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _gradient(self, numbers: Sequence[int]) -> float:
        """Adds the gradient of the loss of a token; text by text, so that none is padded."""
        lessons = [Lesson.of(self._examples.read(number), self._row_of) for number in numbers]
        tokens, total = sum(lesson.counted for lesson in lessons), 0.0
        for lesson in lessons:
            with _fast_products():
                loss = lesson.loss(self._head) / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _judge(
        self, held_out: Sequence[int], progress: Progress, passes: int, losses: list[float], report: Report
    ) -> None:
        found = self.acceptance(held_out)
        tokens = found.tokens(len(found.rates))
        if better := tokens > progress.best or not self._best:
            progress.best = tokens
            self._best = {name: value.clone() for name, value in self._weights().items()}
        progress.without = 0 if better else progress.without + 1
        report(passes, sum(losses) / len(losses) if losses else None, found)
        losses.clear()

    def acceptance(self, numbers: Sequence[int]) -> Acceptance:
        """Of the head as it is, on these texts."""
        lessons = (Lesson.of(self._examples.read(number), self._row_of) for number in numbers)
        with _fast_products():
            return Acceptance.of([lesson.agreements(self._head, self._token_of) for lesson in lessons])

    def _weights(self) -> dict[str, Tensor]:
        """What is trained: all but the embedding, which is the target's."""
        return {name: value.detach() for name, value in self._head.named_parameters() if value.requires_grad}

    def _save(self, progress: Progress) -> None:
        kept: dict[str, Any] = {
            "progress": [progress.steps, progress.done, progress.best, progress.without],
            "head": self._weights(),
            "optimizer": self._optimizer.state_dict(),
            "best": self._best,
        }
        beside = self._place.with_suffix(".part")
        torch.save(kept, beside)
        os.replace(beside, self._place)

    def _restored(self) -> Progress | None:
        if not self._place.is_file():
            return None
        kept = torch.load(self._place, weights_only=True)
        self._head.load_state_dict(kept["head"], strict=False)
        self._optimizer.load_state_dict(kept["optimizer"])
        self._best = kept["best"]
        return Progress(*kept["progress"])
