"""Train a pair: a byte-pair tokenizer, a target and a draft; each command resumes where it stopped.

python -m bench pair tokenizer --pair demo --work build/demo
python -m bench pair model target --pair demo --work build/demo --steps 1246
python -m bench pair model draft --pair demo --work build/demo --steps 1511
python -m bench pair publish --work build/demo recipes/demo
python -m bench pair texts held-out --pair demo > held_out.py
"""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from rich.progress import track
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from bench.pairs.skeletons import END, Skeletons, t5
from bench.pairs.source_code import SourceCode, llama
from mxspec.runtime.cli.command import Command, Group, report_console

WARMUP_STEPS = 100
EVERY = 100  # steps between two measurements; a run can resume from each
_LAYER = re.compile(r"\.\d+\.")
Task = SourceCode | Skeletons


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model to train: its sizes, sequences a step, and the largest learning rate."""

    config: PreTrainedConfig
    batch: int
    learning_rate: float

    def learning_rate_of(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0: it warms up, then falls linearly to zero."""
        return self.learning_rate * min((step + 1) / WARMUP_STEPS, (steps - step) / (steps - WARMUP_STEPS))


# A pair's task, and its models by name.
PAIRS: dict[str, tuple[type[Task], dict[str, ModelPlan]]] = {
    # 8.8 million parameters. Width 512 = 128 x 4: it can be widened by powers of 4 without changing its function.
    # The draft has 0.92 million parameters, 9.6 times fewer than the target.
    "demo": (
        SourceCode,
        {
            "target": ModelPlan(llama(512, 1024, layers=3, heads=8, kv_heads=2), 12, 2e-3),
            "draft": ModelPlan(llama(128, 384, layers=2, heads=4, kv_heads=2), 12, 4e-3),
        },
    ),
    "seq2seq": (
        Skeletons,
        {
            "target": ModelPlan(t5(128, 320, encoder_layers=3, decoder_layers=3, heads=4), 32, 6e-3),
            "draft": ModelPlan(t5(64, 160, encoder_layers=2, decoder_layers=1, heads=2), 32, 6e-3),
        },
    ),
}


def make_optimizers(model: PreTrainedModel, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, norms and an untied head."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and _LAYER.search(n)]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or not _LAYER.search(n)]
    muon = torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def train(name: str, plan: ModelPlan, task: Task, steps: int, work: Path) -> None:
    """Train a model to the end of `steps`, from the last state in the folder `work` if there is one.

    Losses and what the task measures go to NAME.log.jsonl, the model to the folder NAME.
    """
    console, smooth = report_console(), math.nan
    torch.manual_seed(0)
    model = task.build(plan.config).to(task.device)
    optimizers = make_optimizers(model, plan.learning_rate)
    state_path, log_path, first = work / f"{name}.state.pt", work / f"{name}.log.jsonl", 0
    if state_path.exists():
        state = torch.load(state_path, map_location=task.device)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = state["step"]
    parameters = sum(p.numel() for p in model.parameters())
    console.print(f"{name}: {parameters:,} parameters, {steps:,} steps on {task.device}, from step {first:,}")

    for step in track(range(first, steps), name, console=console):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate_of(step, steps)
        found = task.loss(model, step, plan.batch)
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        smooth = found.item() if math.isnan(smooth) else 0.98 * smooth + 0.02 * found.item()
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            model.eval()
            with torch.no_grad():
                record = json.dumps({"step": step + 1, "train_loss": round(smooth, 4), **task.measure(model)})
            model.train()
            console.print(record)
            with log_path.open("a") as log:
                log.write(record + "\n")
            saved = [optimizer.state_dict() for optimizer in optimizers]
            new = state_path.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizers": saved, "step": step + 1}, new)
            new.replace(state_path)
            copy.deepcopy(model).half().save_pretrained(work / name)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copyfile(work / file, work / name / file)


def train_tokenizer(task: type[Task], vocabulary: int, work: Path) -> None:
    """Train a byte-level BPE tokenizer; with an encoder it ends every text as T5's does."""
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[*task.special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(task.texts(), trainer)
    if task is Skeletons:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **task.names_of_tokens).save_pretrained(work)


@click.group(cls=Group)
def main() -> None:
    """Train a pair on the source code of the Python standard library."""


_pair = click.option("--pair", type=click.Choice([*PAIRS]), default="demo", show_default=True)
_work = click.option(
    "--work", type=click.Path(path_type=Path), default=Path("build/demo"), help="Corpus, states and logs go here."
)


@main.command("tokenizer", cls=Command)
@_work
@_pair
def _tokenizer(work: Path, pair: str) -> None:
    """Train the tokenizer."""
    task, plans = PAIRS[pair]
    train_tokenizer(task, plans["target"].config.vocab_size, work)


@main.command("model", cls=Command)
@click.argument("name", type=click.Choice(["target", "draft"]))
@_work
@_pair
@click.option("--steps", type=click.IntRange(1), required=True)
def _model(name: str, work: Path, pair: str, steps: int) -> None:
    """Train the target or the draft."""
    task, plans = PAIRS[pair]
    train(name, plans[name], task(work, "cuda" if torch.cuda.is_available() else "cpu"), steps, work)


@main.command("texts", cls=Command)
@click.argument("which", type=click.Choice(["held-out", "trained-on"]))
@_pair
def _texts(which: str, pair: str) -> None:
    """Print the texts that are held out for evaluation, or those trained on, which may also calibrate rounding."""
    task, _ = PAIRS[pair]
    sys.stdout.writelines(task.held_out_texts() if which == "held-out" else task.texts())
