"""Does speculation pay, and as much as the formula says? Plain and speculative decoding alternating, for every K.

Leviathan et al. (2023), theorem 3.8, with the cost v of scoring K + 1 tokens in one call, over that of one step, in the
place of 1: speedup = (1 - a^(K+1)) / ((1 - a) (c K + v)). c and v are those of the rounds themselves, beside the plain
rounds of the same prompt and repetition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mxspec.evaluate.bench.model import CallBench, seconds_in_turns
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops
from mxspec.runtime.choose_k import expected_tokens
from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.reader import Reader
from mxspec.runtime.request import K, Request
from mxspec.runtime.session import Session
from mxspec.runtime.worth import ALL_WANTED

PROMPT_TOKENS = 64
ANSWER_TOKENS = 128  # whose time Chen et al. (2023) show in figure 1


@dataclass(frozen=True, slots=True)
class Run:
    """The rounds of one answer behind its first token, which comes from reading the prompt."""

    rounds: list[Round]

    @property
    def emitted(self) -> int:
        return sum(r.emitted for r in self.rounds)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rounds)

    @property
    def target_seconds(self) -> float:
        """Of one round."""
        return sum(r.target_seconds for r in self.rounds) / len(self.rounds)


def draft_of(engine: Engine) -> Session:
    """The draft's session; raises MxspecError for a bundle without one."""
    if engine.draft is None:
        raise MxspecError(f"bundle {engine.bundle.path}: holds no draft to measure; compile it with one")
    return engine.draft


class GuidedDrafter(ModelDrafter):
    """Costs what the draft costs, and guesses right with a given probability: random weights agree on nothing.

    `texts` are what the target alone writes, prompts included, by their prompts.
    """

    def __init__(self, session: Session, texts: Mapping[tuple[int, ...], Sequence[int]], acceptance: float) -> None:
        super().__init__(session)
        self._texts = texts
        self._acceptance = acceptance
        self.seed = 0  # of what is right: another in each repetition, so that no K is lucky in all of them

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        calls = super().propose([replace(want, worth=ALL_WANTED) for want in wanted])  # noise is never sure
        for want in wanted:
            length = len(want.tokens)
            prompt = next(prompt for prompt in self._texts if tuple(want.tokens[: len(prompt)]) == prompt)
            right = self._texts[prompt][length : length + len(want.proposal.tokens)]
            draws = np.random.default_rng([self.seed, length, *prompt]).random(len(right))
            for i, (token, draw) in enumerate(zip(right, draws, strict=True)):
                want.proposal.tokens[i] = token if draw < self._acceptance else (token + 1) % self.session.real_vocab
        return calls


def prompts_of(token_ids: Sequence[int], count: int) -> list[list[int]]:
    """`count` stretches of a text, evenly spread."""
    step = max((len(token_ids) - PROMPT_TOKENS) // count, 1)
    found = [list(token_ids[i * step : i * step + PROMPT_TOKENS]) for i in range(count)]
    return [prompt for prompt in found if prompt]


def formula(acceptance: float, k: int, c: float, v: float) -> float:
    """The expected speedup over plain decoding."""
    return expected_tokens(acceptance, k) / (c * k + v)


class SpeculateBench:
    """An engine, its prompts, and what to time with them."""

    def __init__(
        self, bundle: Path, prompts: Sequence[Sequence[int]], new_tokens: int, acceptance: float | None = None
    ) -> None:
        self.engine = Engine(bundle)
        self.prompts = prompts
        self.new_tokens = new_tokens
        self.acceptance = acceptance
        self._plain_texts: dict[tuple[int, ...], list[int]] = {}
        self._benches = [CallBench(Reader(Session.of(self.engine.bundle, name, 1))) for name in ("target", "draft")]
        self.guided = GuidedDrafter(draft_of(self.engine), self._plain_texts, acceptance or 0.0)

    def run(self, prompt: int, k: K, drafter: str = "model") -> Run:
        """One greedy answer at K = k, or at the K that is chosen for each round."""
        tokens = list(self.prompts[prompt])
        who = self.guided if drafter == "model" and self.acceptance is not None else drafter
        request = Request(
            prompt=tokens,
            temperature=0,
            k=k,
            max_new_tokens=self.new_tokens,
            drafter="none" if k == 0 else who,
            ignore_eos=True,
        )
        rounds, answer = [], []
        for event in self.engine.submit(request):
            if isinstance(event, Round):
                rounds.append(event)
            elif isinstance(event, Token):
                answer.append(event.id)
        if k == 0:
            self._plain_texts[tuple(tokens)] = tokens + answer
        else:
            assert self._plain_texts[tuple(tokens)] == tokens + answer, "speculative text differs from plain text"
        return Run(rounds[1:])

    def costs(self) -> dict[str, Any]:
        """Seconds of a draft step and of a target step, each alone and both alternating."""
        cached = PROMPT_TOKENS + self.new_tokens // 2
        target, draft = self._benches
        alone = {"target": target.seconds(1, cached), "draft": draft.seconds(1, cached)}
        medians = np.median(seconds_in_turns((target, draft), 1, cached), axis=0)
        turns = dict(zip(alone, medians.tolist(), strict=True))
        return {"alone": alone, "turns": turns}


def measure(
    bench: SpeculateBench,
    ks: Sequence[int],
    repetitions: int,
    drafters: Sequence[str] = ("model",),
    progress: Callable[[str], object] = lambda text: None,
) -> dict[str, Any]:
    """All drafters and K alternating for each prompt and repetition, plain decoding first; medians over the pairs."""
    every: list[K] = [*ks, "auto"]
    choices = [(drafter, k) for drafter in drafters for k in every]
    plain: list[Run] = []
    runs: dict[tuple[str, K], list[Run]] = {choice: [] for choice in choices}
    costs = []
    for repetition in range(repetitions):
        costs.append(bench.costs())
        bench.guided.seed = repetition
        for prompt in range(len(bench.prompts)):
            progress(f"repetition {repetition + 1} of {repetitions}, prompt {prompt + 1} of {len(bench.prompts)}")
            plain.append(bench.run(prompt, 0))
            for drafter, k in choices:
                runs[drafter, k].append(bench.run(prompt, k, drafter))
    return {
        "threads": ops.threads(),
        "new_tokens": bench.new_tokens,
        "prompts": len(bench.prompts),
        "imposed_acceptance": bench.acceptance,
        "plain": {
            "seconds_per_token": sum(run.seconds for run in plain) / sum(run.emitted for run in plain),
            "answer_seconds": _answer_seconds(plain),
        },
        "turns": _turns(costs),
        "drafters": {
            drafter: {
                "rows": [_row(k, plain, runs[drafter, k]) for k in ks],
                "auto": _measured(plain, runs[drafter, "auto"]),
            }
            for drafter in drafters
        },
    }


def _turns(costs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What it costs that target and draft take turns on the same threads: medians over the repetitions."""

    def over(names: Sequence[str]) -> float:
        trials = [sum(c["turns"][n] for n in names) / sum(c["alone"][n] for n in names) for c in costs]
        return float(statistics.median(trials))

    return {
        "target_seconds": statistics.median(cost["turns"]["target"] for cost in costs),
        "draft_seconds": statistics.median(cost["turns"]["draft"] for cost in costs),
        "target_over_alone": over(["target"]),
        "draft_over_alone": over(["draft"]),
        "over_alone": over(["target", "draft"]),
        "trials": [{"alone_seconds": cost["alone"], "turns_seconds": cost["turns"]} for cost in costs],
    }


def _row(k: int, plain: Sequence[Run], runs: Sequence[Run]) -> dict[str, Any]:
    found = _measured(plain, runs)
    ideal = expected_tokens(found["acceptance"], k)
    predicted = formula(found["acceptance"], k, found["c"], found["v"])
    over = {"predicted": predicted, "measured_over_predicted": found["speedup"] / predicted}
    return {"k": k, "ideal_tokens_per_round": ideal} | found | over


def _measured(plain: Sequence[Run], runs: Sequence[Run]) -> dict[str, Any]:
    rounds = [r for run in runs for r in run.rounds]
    evaluated, drafted = sum(r.evaluated for r in rounds), sum(r.drafted for r in rounds)
    draft_seconds = sum(r.draft_seconds for r in rounds)
    models = draft_seconds + sum(r.target_seconds for r in rounds)
    speedups = list(_speedups(plain, runs))
    step = statistics.median(run.target_seconds for run in plain if run.rounds)
    beside = [(run, before) for run, before in zip(runs, plain, strict=True) if run.rounds and before.rounds]
    return {
        "acceptance": sum(r.accepted for r in rounds) / evaluated if evaluated else 0.0,
        "drafted_per_round": drafted / len(rounds),
        "c": draft_seconds / drafted / step if drafted else 0.0,
        "v": statistics.median(run.target_seconds / before.target_seconds for run, before in beside),
        "tokens_per_round": sum(r.emitted for r in rounds) / len(rounds),
        "speedup": statistics.median(speedups),
        "outside_models": 1 - models / sum(r.seconds for r in rounds),
        "answer_seconds": _answer_seconds(runs),
        "trials_speedup": speedups,
    }


def _answer_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """What ANSWER_TOKENS tokens take, the prompt read: median and 90th percentile over the answers."""
    trials = [run.seconds / run.emitted * ANSWER_TOKENS for run in runs if run.emitted]
    median, high = np.percentile(trials, (50, 90)).tolist()
    return {"median": median, "p90": high}


def _speedups(plain: Sequence[Run], runs: Sequence[Run]) -> Iterator[float]:
    """Speedup of each answer over the plain one of the same prompt and repetition."""
    for before, after in zip(plain, runs, strict=True):
        if before.emitted and after.emitted:
            yield (before.seconds / before.emitted) / (after.seconds / after.emitted)
