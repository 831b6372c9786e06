"""Requests a second of the lm-evaluation-harness: the engine against its own transformers model, on the same pair.

    python bench/lm_eval_requests.py my.bundle CHECKPOINT [--draft CHECKPOINT] --text sample.txt --record out.json

CHECKPOINT is what the bundle was compiled from. Three loads that the harness's tasks are made of, cut from a text:
answers written until a limit, the choices of questions with one example before them, and whole texts. Both alternate on
the same requests and cores; transformers runs as `--model hf` does, in float32, `--batch` requests at a time. `--draft`
gives transformers its own assisted decoding, one request at a time, as a third. The harness's model of transformers
needs `pip install accelerate peft` besides.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Set before the import: the harness needs nothing from the hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from results import LmEvalResult

from mxspec.evaluate.bench.harness import seconds_of, trials_of
from mxspec.evaluate.finish import report
from mxspec.evaluate.tasks.lm_eval_model import MxspecLM

Loads = dict[str, list[tuple[Any, ...]]]
CHOICES = 4


def make_loads(text: str, count: int, new_tokens: int) -> Loads:
    """Arguments of `count` requests of each kind, from different places of a text."""
    settings = {"until": [], "max_gen_toks": new_tokens, "do_sample": False}
    places = [number * (len(text) - 1200) // count for number in range(count)]
    header = text[:400]
    return {
        "generate_until": [(text[at : at + 400], settings) for at in places],
        "loglikelihood": [
            (header + text[at : at + 300], text[end : end + 24])
            for at in places[: count // CHOICES]
            for end in range(at + 300, at + 300 + 200 * CHOICES, 200)
        ],
        "loglikelihood_rolling": [(text[at : at + 1200],) for at in places],
    }


def seconds_of_load(model: Any, kind: str, arguments: list[tuple[Any, ...]]) -> float:
    """Seconds that a model takes to answer a load."""
    requests = [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]
    return seconds_of(lambda: getattr(model, kind)(requests, disable_tqdm=True))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("checkpoint")
    parser.add_argument("--draft")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32, help="requests of each kind")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="requests at a time, of both")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    asked = parse()
    loads = make_loads(asked.text.read_text(), asked.count, asked.new_tokens)
    common = {"pretrained": asked.checkpoint, "device": "cpu", "dtype": "float32"}
    models: dict[str, Any] = {
        "mxspec": MxspecLM(asked.bundle, slots=asked.batch),
        "transformers": HFLM(**common, batch_size=asked.batch),
    }
    if asked.draft:
        models["transformers, assisted"] = assisted(HFLM(**common, batch_size=1), asked.draft)

    def trial(case: tuple[str, str]) -> float:
        kind, name = case
        return seconds_of_load(models[name], kind, loads[kind])

    cases = list(itertools.product(loads, models))
    for kind, name in cases:  # warm
        seconds_of_load(models[name], kind, loads[kind][: asked.batch])
    trials = trials_of(cases, trial, asked.repetitions, both_ways=True)
    finished = LmEvalResult(
        bundle=Path(asked.bundle).name,
        batch=asked.batch,
        new_tokens=asked.new_tokens,
        requests={kind: len(arguments) for kind, arguments in loads.items()},
        seconds={kind: {name: tuple(trials[kind, name]) for name in models} for kind in loads},
    )
    report(finished, asked.json, asked.record)
    models["mxspec"].close()


def assisted(model: HFLM, draft: str) -> HFLM:
    """Transformers' own speculation in its own model of the harness."""
    from transformers import AutoModelForCausalLM

    helper = AutoModelForCausalLM.from_pretrained(draft, dtype="float32")
    generate: Callable[..., Any] = model.model.generate
    model.model.generate = lambda *given, **settings: generate(*given, assistant_model=helper, **settings)
    return model


if __name__ == "__main__":
    main()
