"""Train a pair on the source of the Python standard library: a byte-pair tokenizer, a target and a draft.

    python recipes/demo/train.py tokenizer --work build/demo
    python recipes/demo/train.py target    --work build/demo --epochs 3
    python recipes/demo/train.py draft     --work build/demo --epochs 3
    python recipes/demo/train.py publish   --work build/demo recipes/demo
    python recipes/demo/train.py held-out  > held_out.py
    python recipes/demo/train.py trained-on > trained_on.py

These commands train the demo pair; `--shape` names another (README.md beside this file), in its own work folder.

Each command resumes where it stopped. The corpus is the standard library of the interpreter that runs this
file, without `site-packages`; the files named in `held_out.txt` are never trained on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from mxspec.recipes.training import CONSOLE, Schedule, export_model, fit, library_files, read_source

HELD_OUT = Path(__file__).with_name("held_out.txt")
END_OF_TEXT, END_OF_TEXT_ID = "<|endoftext|>", 0  # the trainer numbers special tokens first
CONTEXT = 1024  # tokens of a training sequence, and the models' max_position_embeddings
SCHEDULE = Schedule(batch=12)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes and schedule of one model; a step has sequences of CONTEXT tokens.

    A `gpt2` has learned positions, GELU and an untied head, and as many key-value heads as query heads.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    architecture: Literal["llama", "gpt2"] = "llama"
    schedule: Schedule = SCHEDULE

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
class TrainedPair:
    """A target and a draft that share a vocabulary."""

    vocab_size: int
    target: ModelSizes
    draft: ModelSizes


# 8.8 million parameters. Width 512 = 128 x 4: it can be widened by powers of 4 without changing its function.
_DEMO_TARGET = ModelSizes(hidden_size=512, intermediate_size=1024, layers=3, heads=8, kv_heads=2)
SHAPES = {
    # The draft has 0.92 million parameters, 9.6 times fewer than the target.
    "demo": TrainedPair(
        4096,
        target=_DEMO_TARGET,
        draft=ModelSizes(
            hidden_size=128, intermediate_size=384, layers=2, heads=4, kv_heads=2, schedule=Schedule(12, 4e-3)
        ),
    ),
    # After Chen et al. (2023, https://arxiv.org/abs/2302.01318), whose draft is wide and has few layers, because
    # another layer costs more time than a wider one: 8 layers of width 6,144, where the target has 80 of 8,192. The
    # draft here has the target's width, and one layer instead of three.
    "wide-draft": TrainedPair(
        4096,
        target=_DEMO_TARGET,
        draft=ModelSizes(hidden_size=512, intermediate_size=1024, layers=1, heads=8, kv_heads=2),
    ),
    # After Leviathan et al. (2023, https://arxiv.org/abs/2211.17192), section 4: decoders like GPT with GELU for
    # lm1b, with 97M and 6M parameters, 8k tokens, and these widths, layers and heads. Chosen here: the kind of tokens
    # (the paper's are BERT's), learned positions, and the schedule.
    "lm1b": TrainedPair(
        8192,
        target=ModelSizes(768, 3072, layers=12, heads=12, kv_heads=12, architecture="gpt2", schedule=Schedule(8, 1e-3)),
        draft=ModelSizes(256, 1024, layers=2, heads=4, kv_heads=4, architecture="gpt2", schedule=Schedule(8)),
    ),
}


# --- corpus -----------------------------------------------------------------------------------------------------


def encode(tokenizer: Tokenizer, files: list[Path]) -> torch.Tensor:
    """uint16[n] token ids of the files, with the end-of-text id after each."""
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
        corpus = tuple(encode(tokenizer, files) for files in library_files(HELD_OUT))
        torch.save(corpus, cache)
    train, held_out = torch.load(cache)
    CONSOLE.print(f"corpus: {len(train):,} tokens to train on, {len(held_out):,} held out")
    return train, held_out


# --- training ---------------------------------------------------------------------------------------------------


def sequences(tokens: torch.Tensor, step: int, batch: int) -> torch.Tensor:
    """int64[batch, CONTEXT + 1]: the step's sequences. Every epoch cuts the corpus at new places and shuffles it."""
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
    """Cross-entropy; with a teacher, half of it against the teacher's distribution, which decides acceptance."""
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


def load_model(folder: Path) -> PreTrainedModel:
    """Load a checkpoint in float32; code in the checkpoint is never run."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    return model


def train(name: str, plan: ModelSizes, vocab_size: int, work: Path, epochs: float, teacher: Path | None = None) -> None:
    """Train a model of this plan for `epochs` passes over the corpus; resumes from the last saved state."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens, held_out = load_corpus(work)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(plan.config(vocab_size)).to(device)
    guide = load_model(teacher).to(device) if teacher else None
    fit(
        name,
        model,
        plan.schedule,
        steps=round(epochs * len(tokens) / (plan.schedule.batch * CONTEXT)),
        work=work,
        loss=lambda step: training_loss(model, guide, sequences(tokens, step, plan.schedule.batch).to(device)),
        measure=lambda: {"held_out_loss": round(held_out_loss(model, held_out, device), 4)},
    )


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
    tokenizer.train_from_iterator((read_source(path) for path in library_files(HELD_OUT)[0]), trainer)
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
    """Train the draft, by default without a teacher."""
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
    """Print the text of the held-out files, only for evaluation."""
    for path in library_files(HELD_OUT)[1]:
        sys.stdout.write(read_source(path))


@main.command("trained-on")
def print_trained_on() -> None:
    """Print the text of the training files, which may also calibrate rounding."""
    for path in library_files(HELD_OUT)[0]:
        sys.stdout.write(read_source(path))


if __name__ == "__main__":
    main()
