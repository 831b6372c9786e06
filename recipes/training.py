"""Shared by the training scripts: the corpus, optimizers, a schedule, and a training loop that resumes."""

from __future__ import annotations

import copy
import json
import math
import re
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedModel

CONSOLE = Console(stderr=True)
EVERY = 100  # steps between two measurements; a run can resume from each
_LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a model is trained: sequences a step, and a learning rate that warms up, then falls linearly to zero."""

    batch: int
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    warmup_steps: int = 100

    def learning_rate_of(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        factor = min((step + 1) / self.warmup_steps, (steps - step) / (steps - self.warmup_steps))
        return self.learning_rate * factor


# --- corpus -----------------------------------------------------------------------------------------------------


def library_files(held_out: Path) -> tuple[list[Path], list[Path]]:
    """The standard library's sources, sorted: (training files, held-out files, which the file `held_out` names)."""
    root = Path(sysconfig.get_path("stdlib"))
    names = set(held_out.read_text().split())
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    kept = [path for path in files if path.relative_to(root).as_posix() not in names]
    return kept, [path for path in files if path.relative_to(root).as_posix() in names]


def read_source(path: Path) -> str:
    """The text of a source file, without bytes that are not UTF-8."""
    return path.read_bytes().decode("utf-8", errors="ignore")


# --- training ---------------------------------------------------------------------------------------------------


def make_optimizers(model: PreTrainedModel, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, norms and an untied head."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and _LAYER.search(n)]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or not _LAYER.search(n)]
    muon = torch.optim.Muon(
        matrices, lr=schedule.learning_rate, weight_decay=schedule.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=schedule.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def fit(
    name: str,
    model: PreTrainedModel,
    schedule: Schedule,
    *,
    steps: int,
    work: Path,
    loss: Callable[[int], torch.Tensor],
    measure: Callable[[], dict[str, float]],
) -> None:
    """Train to the end of `steps`, from the last state in the folder `work` if there is one.

    `loss` gives the loss of a step; the results of `measure` go to NAME.log.jsonl, the model to the folder NAME.
    """
    device = next(model.parameters()).device
    optimizers = make_optimizers(model, schedule)
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
                    group["lr"] = schedule.learning_rate_of(step, steps)
            found = loss(step)
            found.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            smooth = found.item() if math.isnan(smooth) else 0.98 * smooth + 0.02 * found.item()
            speed = (step + 1 - first) * schedule.batch / (time.monotonic() - began)
            progress.update(task, advance=1, description=f"{name} loss {smooth:.3f} {speed:,.0f} sequences/s")
            if (step + 1) % EVERY == 0 or step + 1 == steps:
                record = {"step": step + 1, "train_loss": round(smooth, 4), **measure()}
                with log_path.open("a") as log:
                    log.write(json.dumps(record) + "\n")
                progress.console.print(json.dumps(record))
                saved = [optimizer.state_dict() for optimizer in optimizers]
                _save_state(state_path, model=model.state_dict(), optimizers=saved, step=step + 1)
                export_model(model, work / name)


def _save_state(path: Path, **state: object) -> None:
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def export_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a copy of the model as fp16 safetensors."""
    copy.deepcopy(model).half().save_pretrained(folder)
