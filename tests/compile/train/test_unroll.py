"""All starts at once give what the head gives when it drafts from each place, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.tensors.tensor import read_whole
from mxspec.compile.heads.eagle3 import Eagle3Config, Eagle3Head
from mxspec.compile.train.lesson import unroll
from tests.compile.heads.make_head import TARGET_LOGITS, save_head
from tests.compile.heads.plain_head import PlainHead


@pytest.mark.parametrize(
    "settings",
    [{}, {"norm_before_residual": True, "fc_norm": True}, {"norm_output": True, "layer_type": "qwen3"}],
    ids=["plain", "as trained here", "norm_output"],
)
def test_each_step_of_each_start_is_the_heads_own_recurrence(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = save_head(tmp_path / "head", form="speculators", own_embedding=True, **settings)
    with Checkpoint(folder) as checkpoint:
        assert isinstance(checkpoint.config, Eagle3Config)
        head = Eagle3Head(checkpoint.config).float()
        head.load_state_dict(
            {name: torch.from_numpy(read_whole(checkpoint.tensors[name])) for name in head.state_dict()}
        )
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(TARGET_LOGITS, (11,), generator=generator)
    states = torch.randn(11, 3 * 64, generator=generator)
    plain, steps = PlainHead.read(folder, torch.empty(0)), 4
    with torch.no_grad():
        found = list(unroll(head, tokens, states, steps))
    assert [len(logits) for logits in found] == [9, 8, 7, 6]
    for start in range(9):
        guesses = tokens[start + 2 : start + 1 + steps].tolist()
        expected = plain.steps(tokens[: start + 2].tolist(), states, guesses)
        for step, logits in enumerate(found):
            if start < len(logits):
                wanted = expected[step]
                assert (logits[start] - wanted).abs().max() < 1e-5 * wanted.abs().max(), (start, step)


def test_a_text_shorter_than_the_steps_has_fewer(tmp_path: Path) -> None:
    folder = save_head(tmp_path / "head", form="speculators", own_embedding=True)
    with Checkpoint(folder) as checkpoint:
        head = Eagle3Head(checkpoint.config).float()
    assert [len(logits) for logits in unroll(head, torch.arange(4), torch.zeros(4, 192), 4)] == [2, 1]
