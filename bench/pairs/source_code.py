"""The task of the demo pair: continue Python code, of the standard library of the interpreter that runs this."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

HELD_OUT = Path(__file__).resolve().parents[2] / "recipes" / "demo" / "held_out.txt"  # files never trained on
END_OF_TEXT, END_OF_TEXT_ID = "<|endoftext|>", 0  # the trainer numbers special tokens first
CONTEXT = 1024  # tokens of a training sequence, and the models' max_position_embeddings


def library_files() -> tuple[list[Path], list[Path]]:
    """The standard library's sources without site-packages, sorted: (training files, held-out files)."""
    root = Path(sysconfig.get_path("stdlib"))
    names = set(HELD_OUT.read_text().split())
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    kept = [path for path in files if path.relative_to(root).as_posix() not in names]
    return kept, [path for path in files if path.relative_to(root).as_posix() in names]


def read_source(path: Path) -> str:
    """The text of a source file, without bytes that are not UTF-8."""
    return path.read_bytes().decode("utf-8", errors="ignore")


def llama(width: int, inner: int, layers: int, heads: int, kv_heads: int) -> LlamaConfig:
    """A Llama whose head is its embedding."""
    return LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
    )


class SourceCode:
    """The corpus as token ids, encoded once and kept in the work folder."""

    special_tokens = (END_OF_TEXT,)
    names_of_tokens = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}  # noqa: RUF012

    def __init__(self, work: Path, device: str) -> None:
        self.device, cache = device, work / "corpus.pt"
        if not cache.exists():
            tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
            torch.save([_encode(tokenizer, files) for files in library_files()], cache)
        self.tokens, self.held_out = torch.load(cache)

    @staticmethod
    def texts() -> Iterator[str]:
        """The training files."""
        return map(read_source, library_files()[0])

    @staticmethod
    def held_out_texts() -> Iterator[str]:
        """The held-out files."""
        return map(read_source, library_files()[1])

    def build(self, config: PreTrainedConfig) -> PreTrainedModel:
        """A model with random weights."""
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        return model

    def loss(self, model: PreTrainedModel, step: int, batch: int) -> torch.Tensor:
        """The mean cross-entropy of a step's sequences."""
        rows = sequences(self.tokens, step, batch).to(self.device)
        return F.cross_entropy(_logits(model, rows[:, :-1]), rows[:, 1:].flatten())

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """Mean cross-entropy in nats a token over all held-out sequences."""
        losses = []
        for start in range(0, len(self.held_out) - CONTEXT, CONTEXT):
            row = self.held_out[start : start + CONTEXT + 1].to(torch.int64).to(self.device)[None]
            losses.append(F.cross_entropy(_logits(model, row[:, :-1]), row[0, 1:]).item())
        return {"held_out_loss": round(float(np.mean(losses)), 4)}


def _encode(tokenizer: Tokenizer, files: list[Path]) -> torch.Tensor:
    """uint16[n] token ids of the files, with the end-of-text id after each."""
    encodings = tokenizer.encode_batch([read_source(path) for path in files])
    return torch.from_numpy(np.concatenate([[*each.ids, END_OF_TEXT_ID] for each in encodings]).astype(np.uint16))


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


def _logits(model: PreTrainedModel, inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast(inputs.device.type, torch.bfloat16):
        logits: torch.Tensor = model(input_ids=inputs, use_cache=False).logits
    return logits.float().flatten(0, 1)
