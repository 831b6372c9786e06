"""An engine, its prompts, and what `specbench speculate` times with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxspec.evaluate.bench.context import require_context
from mxspec.evaluate.bench.harness import same_texts
from mxspec.evaluate.bench.model.calls import CallBench, seconds_alternating
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS
from mxspec.evaluate.bench.speculate.guided import GuidedDrafter, draft_of
from mxspec.evaluate.bench.speculate.result import StepSeconds, TurnsTrial
from mxspec.formats.manifest import ModelName
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.policy.choose_k import expected_tokens
from mxspec.runtime.request import K, Request


@dataclass(frozen=True, slots=True)
class Run:
    """The rounds of one answer after its first token, which reading the prompt gives.

    `encode_seconds` is the time that an encoder read the source; 0 if the source had been read before.
    """

    rounds: list[Round]
    encode_seconds: float = 0.0

    @property
    def emitted(self) -> int:
        return sum(r.emitted for r in self.rounds)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rounds)

    @property
    def target_seconds(self) -> float:
        """Target seconds of one round."""
        return sum(r.target_seconds for r in self.rounds) / len(self.rounds)

    @property
    def draft_seconds(self) -> float:
        """Draft seconds of one drafted token; 0 without drafted tokens."""
        drafted = sum(r.drafted for r in self.rounds)
        return sum(r.draft_seconds for r in self.rounds) / drafted if drafted else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted tokens over evaluated ones; 0 without evaluated tokens."""
        evaluated = sum(r.evaluated for r in self.rounds)
        return sum(r.accepted for r in self.rounds) / evaluated if evaluated else 0.0

    @property
    def ideal_tokens(self) -> float:
        """The tokens that the rounds would give if each guess were right with one independent probability."""
        return sum(expected_tokens(self.acceptance, r.drafted) for r in self.rounds)


class SpeculateBench:
    """An engine with its prompts, and the times of its answers and steps."""

    def __init__(
        self, bundle: Path, prompts: Sequence[Sequence[int]], new_tokens: int, acceptance: float | None = None
    ) -> None:
        """Raises MxspecError if a bundle to impose acceptance on has no draft, or if its context is too short."""
        self.engine = Engine(bundle)
        require_context(self.engine.bundle, PROMPT_TOKENS, new_tokens)
        self.prompts = prompts
        self.new_tokens = new_tokens
        self.acceptance = acceptance
        self._plain_texts: dict[tuple[int, ...], list[int]] = {}
        self.has_draft = self.engine.draft is not None
        models: tuple[ModelName, ...] = ("target", "draft") if self.has_draft else ("target",)
        self._benches = [CallBench(Reader(Session.of(self.engine.bundle, name, 1))) for name in models]
        self.guided: GuidedDrafter | None = None
        if acceptance is not None:
            self.guided = GuidedDrafter(draft_of(self.engine), self._plain_texts, acceptance)

    def run(self, prompt: int, k: K, drafter: str = "model") -> Run:
        """One greedy answer at K = k; with "auto", K is chosen for each round."""
        tokens = list(self.prompts[prompt])
        who = self.guided if drafter == "model" and self.guided is not None else drafter
        request = Request(
            prompt=tokens,
            temperature=0,
            k=k,
            max_new_tokens=self.new_tokens,
            drafter="none" if k == 0 else who,
            ignore_eos=True,
        )
        rounds, answer = [], []
        handle = self.engine.submit(request)
        for event in handle:
            if isinstance(event, Round):
                rounds.append(event)
            elif isinstance(event, Token):
                answer.append(event.id)
        begin = list(self.engine.bundle.manifest.tokenizer.decoder_start) or tokens
        if k == 0:
            self._plain_texts[tuple(tokens)] = begin + answer
        else:
            same_texts(self._plain_texts[tuple(tokens)], begin + answer)
        return Run(rounds[1:], handle.statistics.encode_seconds)

    def costs(self) -> TurnsTrial:
        """Seconds of a draft step and of a target step: each alone, and both alternating."""
        prompt = 0 if self.engine.target.encoder is not None else PROMPT_TOKENS
        cached = prompt + self.new_tokens // 2
        target, draft = self._benches
        alone = StepSeconds(target=target.seconds(1, cached), draft=draft.seconds(1, cached))
        medians = np.median(seconds_alternating((target, draft), 1, cached), axis=0)
        turns = StepSeconds(target=float(medians[0]), draft=float(medians[1]))
        return TurnsTrial(alone_seconds=alone, turns_seconds=turns)
