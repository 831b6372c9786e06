"""Teach a head the greedy texts of a tiny target by heart, so that its guesses are right where it reads right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fit_head import fit_head, fit_mtp
from mxspec.compile.checkpoint.tensors.tensor import read_whole
from mxspec.compile.heads.eagle3 import Eagle3Head
from mxspec.compile.heads.mtp import MimoMtp

STEPS = 150


def train_head(folder: Path, target: Path, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Change the folder's weights and rows; returns the texts with which the target answers `prompts`."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    with Checkpoint(target) as of_target, Checkpoint(folder) as checkpoint:
        fit_head(checkpoint, of_target)
        config = checkpoint.config
    answers, texts = [], []
    for prompt in prompts:
        text = _greedy(model, list(prompt), length)
        answers.append(text[len(prompt) :])
        texts.append(torch.tensor([text]))
    tensors = load_file(folder / "model.safetensors")
    plain = next(name for name in tensors if name.endswith("hidden_norm.weight")).removesuffix("hidden_norm.weight")
    used = sorted({token for answer in answers for token in answer})
    others = [token for token in range(256) if token not in used]
    ids = torch.tensor(sorted(used + others[: config.draft_vocab_size - len(used)]))
    head = Eagle3Head(config).float()
    own = {name.replace(plain, "layers.0."): value for name, value in tensors.items() if name not in ("d2t", "t2d")}
    own.setdefault("embed_tokens.weight", model.model.embed_tokens.weight.detach())
    head.load_state_dict(own)
    head.embed_tokens.requires_grad_(False)
    examples = [_example(model, text, config.hidden_state_outputs, ids) for text in texts]
    _learn(head, examples)
    learnt = {name.replace("layers.0.", plain): value.detach().half() for name, value in head.state_dict().items()}
    if "embed_tokens.weight" not in tensors:
        del learnt["embed_tokens.weight"]
    learnt |= {"d2t": ids - torch.arange(len(ids))}
    save_file(learnt, folder / "model.safetensors", metadata={"format": "pt"})
    return answers


def train_mtp(folder: Path, model: PreTrainedModel, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """As train_head, of the MTP layer of a MiMo checkpoint, whose target is `model`."""
    with Checkpoint(folder) as target, Checkpoint(folder, mtp=True) as checkpoint:
        fit_mtp(checkpoint, target)
        layer = MimoMtp(checkpoint.config).float()
        layer.load_state_dict({name: torch.from_numpy(read_whole(value)) for name, value in checkpoint.tensors.items()})
        published = {name: tensor.name for name, tensor in checkpoint.tensors.items()}
    texts = [_greedy(model, list(prompt), length) for prompt in prompts]
    examples = []
    for text in texts:
        with torch.no_grad():
            states = _entering(model.model.norm, lambda text=text: model(torch.tensor([text])))
        examples.append((torch.tensor([text[1:-1]]), states[:-2], torch.tensor(text[2:])))
    layer.embed_tokens.requires_grad_(False)
    layer.lm_head.requires_grad_(False)
    _learn(layer, examples)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {published[name]: value.detach().half() for name, value in layer.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def _entering(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """What a module takes while a model runs, float32[tokens, hidden]."""
    taken: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: taken.append(given[0]))
    run()
    hook.remove()
    return taken[0][0]


def _learn(head: Any, examples: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Fit a head to the tokens that it reads, the states beside them, and the row of what follows each."""
    optimizer = torch.optim.Adam([value for value in head.parameters() if value.requires_grad], lr=4e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum(_loss(head, *example) for example in examples).backward()  # type: ignore[union-attr]
        optimizer.step()


def _greedy(model: PreTrainedModel, text: list[int], length: int) -> list[int]:
    """The text with `length` more tokens; only ids of bytes are written."""
    with torch.no_grad():
        for _ in range(length):
            text = [*text, int(model(torch.tensor([text])).logits[0, -1, :256].argmax())]
    return text


def _example(
    model: LlamaForCausalLM, text: Tensor, places: Sequence[int], ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens that the head reads, the states beside them, and the row of what follows each (-100 without one)."""
    with torch.no_grad():
        hidden = model(text, output_hidden_states=True).hidden_states
    states = torch.cat([hidden[layer][0] for layer in places], dim=-1)
    row_of = torch.full((model.config.vocab_size,), -100)
    row_of[ids] = torch.arange(len(ids))
    return text[:, 1:-1], states[:-2], row_of[text[0, 2:]]


def _loss(head: Any, tokens: Tensor, states: Tensor, rows: Tensor) -> Tensor:
    """With the target's states, and with the head's own of the step before."""
    g = head.project(states)[None]
    loss = torch.zeros(())
    for _ in range(3):
        out = head(tokens, g)
        loss = loss + torch.nn.functional.cross_entropy(out.logits[0], rows, ignore_index=-100)
        g = torch.cat([g[:, :1], out.states[:, :-1]], dim=1)
    return loss
