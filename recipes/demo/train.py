"""Train a pair: a byte-pair tokenizer, a target and a draft, on the Python standard library's source.

    python recipes/demo/train.py tokenizer --work build/demo
    python recipes/demo/train.py target    --work build/demo --epochs 3
    python recipes/demo/train.py draft     --work build/demo --epochs 3
    python recipes/demo/train.py publish   --work build/demo recipes/demo
    python recipes/demo/train.py held-out  > held_out.py
    python recipes/demo/train.py trained-on > trained_on.py

That is the demo pair; `--shape` names another (README.md beside this file), in a work folder of its own.

Each command resumes where it stopped. The corpus is the standard library of the interpreter that runs this
file, without `site-packages`; the files named in `held_out.txt` are never trained on.
"""

from __future__ import annotations

import json
import math
import re
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

HERE = Path(__file__).resolve().parent
END_OF_TEXT, END_OF_TEXT_ID = "<|endoftext|>", 0  # the first special token that the trainer numbers
CONTEXT = 1024  # tokens a training sequence, and the models' max_position_embeddings
CONSOLE = Console(stderr=True)
_LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and schedule of one model; the learning rate warms up, then falls linearly to zero.

    A `gpt2` has learned positions, GELU and a head of its own; it shares no heads of keys and values.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    architecture: Literal["llama", "gpt2"] = "llama"
    batch: int = 12  # sequences of CONTEXT tokens a step
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    warmup_steps: int = 100

    def config(self, vocab_size: int) -> PreTrainedConfig:
        ids = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID}
        if self.architecture == "gpt2":
            return GPT2Config(
                vocab_size=vocab_size,
                n_embd=self.hidden_size,
                n_inner=self.intermediate_size,
                n_layer=self.layers,
                n_head=self.heads,
                n_positions=CONTEXT,
                activation_function="gelu",
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                tie_word_embeddings=False,
                **ids,
            )
        return LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            **ids,
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft that share a vocabulary."""

    vocab_size: int
    target: Plan
    draft: Plan


# 8.8 million parameters. Width 512 = 128 x 4: it can be widened by powers of 4 without changing its function.
_DEMO_TARGET = Plan(hidden_size=512, intermediate_size=1024, layers=3, heads=8, kv_heads=2)
SHAPES = {
    # The draft has 0.92 million parameters, 9.6 times fewer than the target.
    "demo": Pair(
        4096,
        target=_DEMO_TARGET,
        draft=Plan(hidden_size=128, intermediate_size=384, layers=2, heads=4, kv_heads=2, learning_rate=4e-3),
    ),
    # After Chen et al. (2023, https://arxiv.org/abs/2302.01318), whose draft is wide and has few layers, because a
    # layer more costs more time than a wider one: theirs 8 of 6,144 to a target of 80 of 8,192. Ours has the target's
    # own width, and one layer of three.
    "wide-draft": Pair(
        4096,
        target=_DEMO_TARGET,
        draft=Plan(hidden_size=512, intermediate_size=1024, layers=1, heads=8, kv_heads=2),
    ),
    # After Leviathan et al. (2023, https://arxiv.org/abs/2211.17192), section 4: decoders like GPT with GELU for
    # lm1b, 97M and 6M parameters, 8k tokens, widths, layers, heads as here. Our choice: the kind of tokens (theirs are
    # BERT's), learned positions, the schedule.
    "lm1b": Pair(
        8192,
        target=Plan(768, 3072, layers=12, heads=12, kv_heads=12, architecture="gpt2", batch=8, learning_rate=1e-3),
        draft=Plan(256, 1024, layers=2, heads=4, kv_heads=4, architecture="gpt2", batch=8),
    ),
}


# --- corpus -----------------------------------------------------------------------------------------------------


def library_files() -> tuple[list[Path], list[Path]]:
    """The standard library's sources, sorted: (trained on, held out)."""
    root = Path(sysconfig.get_path("stdlib"))
    held_out = set((HERE / "held_out.txt").read_text().split())
    files = sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts)
    kept = [p for p in files if p.relative_to(root).as_posix() not in held_out]
    return kept, [p for p in files if p.relative_to(root).as_posix() in held_out]


def read_source(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="ignore")


def encode(tokenizer: Tokenizer, files: list[Path]) -> torch.Tensor:
    """uint16[n] token ids of the files, each closed by the end-of-text id."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch([read_source(path) for path in files]):
        ids += encoding.ids
        ids.append(END_OF_TEXT_ID)
    return torch.from_numpy(np.asarray(ids, dtype=np.uint16))


def load_corpus(work: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """(training tokens, held-out tokens), encoded once and kept in the work folder."""
    cache = work / "corpus.pt"
    if not cache.exists():
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        corpus = tuple(encode(tokenizer, files) for files in library_files())
        torch.save(corpus, cache)
    train, held_out = torch.load(cache)
    CONSOLE.print(f"corpus: {len(train):,} tokens to train on, {len(held_out):,} held out")
    return train, held_out


# --- training ---------------------------------------------------------------------------------------------------


def learning_rate_factor(step: int, steps: int, warmup: int) -> float:
    return min((step + 1) / warmup, (steps - step) / (steps - warmup))


def make_optimizers(model: PreTrainedModel, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, norms and a head of its own."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and _LAYER.search(n)]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or not _LAYER.search(n)]
    muon = torch.optim.Muon(
        matrices, lr=plan.learning_rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def sequences(tokens: torch.Tensor, step: int, batch: int) -> torch.Tensor:
    """int64[batch, CONTEXT + 1]: the step's sequences; every epoch cuts the corpus at new places, in a new order."""
    per_epoch = len(tokens) // CONTEXT - 1
    rows = []
    for i in range(step * batch, (step + 1) * batch):
        epoch, index = divmod(i, per_epoch)
        generator = torch.Generator().manual_seed(epoch)
        offset = int(torch.randint(CONTEXT, (1,), generator=generator))
        order = torch.randperm(per_epoch, generator=generator)
        start = offset + int(order[index]) * CONTEXT
        rows.append(tokens[start : start + CONTEXT + 1].to(torch.int64))
    return torch.stack([F.pad(row, (0, CONTEXT + 1 - len(row))) for row in rows])


def logits_of(model: PreTrainedModel, inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast(inputs.device.type, torch.bfloat16):
        logits: torch.Tensor = model(input_ids=inputs, use_cache=False).logits
    return logits.float().flatten(0, 1)


def training_loss(model: PreTrainedModel, teacher: PreTrainedModel | None, batch: torch.Tensor) -> torch.Tensor:
    """Cross-entropy; with a teacher, half of it against the teacher's distribution (what acceptance is made of)."""
    logits = logits_of(model, batch[:, :-1])
    loss = F.cross_entropy(logits, batch[:, 1:].flatten())
    if teacher is None:
        return loss
    with torch.no_grad():
        target_probs = logits_of(teacher, batch[:, :-1]).softmax(-1)
    return 0.5 * loss + 0.5 * F.cross_entropy(logits, target_probs)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, tokens: torch.Tensor, device: str) -> float:
    """Mean cross-entropy in nats a token over all held-out sequences."""
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(tokens) - CONTEXT, CONTEXT):
        row = tokens[start : start + CONTEXT + 1].to(torch.int64).to(device)[None]
        total += F.cross_entropy(logits_of(model, row[:, :-1]), row[0, 1:], reduction="sum").item()
        count += CONTEXT
    model.train()
    return total / count


def save_state(path: Path, **state: Any) -> None:
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load_model(folder: Path) -> PreTrainedModel:
    """A checkpoint in float32; code that it brings is never run."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    return model


def export_model(model: PreTrainedModel, folder: Path) -> None:
    """Write the model as fp16 safetensors; the model trained on stays as it is."""
    half = AutoModelForCausalLM.from_config(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)


def train(name: str, plan: Plan, vocab_size: int, work: Path, epochs: float, teacher: Path | None = None) -> None:
    """Train a model of this plan for `epochs` passes over the corpus; resumes from the last saved state."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens, held_out = load_corpus(work)
    steps = round(epochs * len(tokens) / (plan.batch * CONTEXT))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(plan.config(vocab_size)).to(device)
    guide = load_model(teacher).to(device) if teacher else None
    optimizers = make_optimizers(model, plan)
    state_path, log_path, first = work / f"{name}.state.pt", work / f"{name}.log.jsonl", 0
    if state_path.exists():
        state = torch.load(state_path, map_location=device)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = state["step"]
    parameters = sum(p.numel() for p in model.parameters())
    CONSOLE.print(f"{name}: {parameters:,} parameters, {steps:,} steps on {device}, from step {first:,}")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=CONSOLE) as progress:
        task = progress.add_task(name, total=steps, completed=first)
        began, smooth = time.monotonic(), math.nan
        for step in range(first, steps):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = plan.learning_rate * learning_rate_factor(step, steps, plan.warmup_steps)
            loss = training_loss(model, guide, sequences(tokens, step, plan.batch).to(device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            smooth = loss.item() if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss.item()
            speed = (step + 1 - first) * plan.batch * CONTEXT / (time.monotonic() - began)
            progress.update(task, advance=1, description=f"{name} loss {smooth:.3f} {speed:,.0f} tok/s")
            if (step + 1) % 100 == 0 or step + 1 == steps:
                record = {
                    "step": step + 1,
                    "tokens": (step + 1) * plan.batch * CONTEXT,
                    "train_loss": round(smooth, 4),
                    "held_out_loss": round(held_out_loss(model, held_out, device), 4),
                }
                with log_path.open("a") as log:
                    log.write(json.dumps(record) + "\n")
                progress.console.print(json.dumps(record))
                saved = [optimizer.state_dict() for optimizer in optimizers]
                save_state(state_path, model=model.state_dict(), optimizers=saved, step=step + 1)
                export_model(model, work / name)


# --- commands ---------------------------------------------------------------------------------------------------


@click.group()
def main() -> None:
    """Train a pair on the source code of the Python standard library."""


work_option = click.option(
    "--work", type=click.Path(path_type=Path), default=Path("build/demo"), help="Corpus, states and logs go here."
)
shape_option = click.option("--shape", type=click.Choice(list(SHAPES)), default="demo", show_default=True)


@main.command("tokenizer")
@work_option
@shape_option
def train_tokenizer(work: Path, shape: str) -> None:
    """Train the byte-level BPE tokenizer."""
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPES[shape].vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((read_source(path) for path in library_files()[0]), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)
    fast.save_pretrained(work)


@main.command("target")
@work_option
@shape_option
@click.option("--epochs", default=3.0, show_default=True)
def train_target(work: Path, shape: str, epochs: float) -> None:
    """Train the target."""
    pair = SHAPES[shape]
    train("target", pair.target, pair.vocab_size, work, epochs)


@main.command("draft")
@work_option
@shape_option
@click.option("--epochs", default=3.0, show_default=True)
@click.option("--teacher", type=click.Path(exists=True, path_type=Path), help="Distil from this model.")
def train_draft(work: Path, shape: str, epochs: float, teacher: Path | None) -> None:
    """Train the draft, by default on the text alone."""
    pair = SHAPES[shape]
    train("draft", pair.draft, pair.vocab_size, work, epochs, teacher)


@main.command()
@work_option
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
def publish(work: Path, destination: Path) -> None:
    """Copy both models, each with the tokenizer, to DESTINATION/target and DESTINATION/draft."""
    for name in ("target", "draft"):
        folder = destination / name
        export_model(load_model(work / name), folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes((work / file).read_bytes())


@main.command("held-out")
def print_held_out() -> None:
    """Print the text of the held-out files: for evaluation, and nothing else."""
    for path in library_files()[1]:
        sys.stdout.write(read_source(path))


@main.command("trained-on")
def print_trained_on() -> None:
    """Print the text of the files that the models were trained on, such as calibrated rounding may see."""
    for path in library_files()[0]:
        sys.stdout.write(read_source(path))


if __name__ == "__main__":
    main()
