"""From a tiny target to a head that drafts for it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import read_whole
from mxspec.compile.progress import Stages
from mxspec.compile.train import train_head as steps
from mxspec.compile.train import training
from mxspec.compile.train.examples import Examples
from mxspec.compile.train.train_head import TrainingSettings, train_head
from mxspec.compile.train.training import Training
from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine
from tests.compile.heads.make_head import TARGET_LOGITS
from tests.compile.heads.test_pair import asked, compiled
from tests.conftest import save_checkpoint

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"


class Noted(Stages):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def rates(self) -> list[list[float]]:
        """Held-out acceptance, place by place, each time that it was said."""
        return [
            [float(rate) for rate in re.findall(r"0\.\d{3}|1\.000", note.split(";")[0].split("acceptance")[1])]
            for note in self.notes
            if note.startswith("after ")
        ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    save_checkpoint(folder / "target", seed=5, logits=TARGET_LOGITS, layers=4)
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def wanted(folder: Path) -> TrainingSettings:
    return TrainingSettings(str(folder / "target"), tokens=4000, vocabulary=200)


@pytest.fixture(scope="module")
def trained(folder: Path, wanted: TrainingSettings) -> Noted:
    """A head in `head`, and what was said."""
    stages = Noted()
    train_head(wanted, folder / "head", resume=False, force=False, stages=stages)
    return stages


def test_held_out_acceptance_rises(folder: Path, trained: Noted) -> None:
    first, *_, last = trained.rates()
    assert len(first) == 4
    assert last[0] > max(0.06, 5 * first[0]), trained.notes
    assert not (folder / "head.partial").exists()
    config = json.loads((folder / "head" / "config.json").read_text())
    assert config["architectures"] == ["Eagle3Speculator"]
    assert config["draft_vocab_size"] == 200


def test_whoever_can_read_the_folder_can_read_the_head(folder: Path, trained: Noted) -> None:
    head = folder / "head"
    assert {file.stat().st_mode & 0o777 for file in head.iterdir()} == {head.stat().st_mode & 0o666}


def test_the_head_drafts_for_its_target(folder: Path, trained: Noted) -> None:
    bundle = compiled(folder, folder / "head", with_baseline=False)
    prompt = [*b"<user>why</><assistant>"]
    with Engine(bundle.path, slots=1) as engine:
        plain = engine.submit(asked(prompt, k=0)).result()
        drafted = engine.submit(asked(prompt, k=3)).result()
    assert drafted.token_ids == plain.token_ids
    assert drafted.statistics.accepted > 0


def test_a_head_in_mxfp6_is_packed_as_it_is(
    folder: Path, trained: Noted, wanted: TrainingSettings, tmp_path: Path
) -> None:
    """Its values are those that ml_dtypes rounds the fp16 head's to."""
    train_head(
        replace(wanted, weight_format="mxfp6_e2m3"), tmp_path / "head", resume=False, force=False, stages=Noted()
    )
    with Checkpoint(folder / "head") as fp16, Checkpoint(tmp_path / "head") as packed:
        assert packed.tensors.keys() == fp16.tensors.keys()
        for name, tensor in packed.tensors.items():
            values = read_whole(fp16.tensors[name])
            if values.ndim == 2 and values.shape[1] % 32 == 0:
                assert isinstance(tensor, MxTensor)
                values = rounded(values, ml_dtypes.float6_e2m3fn)
            np.testing.assert_array_equal(read_whole(tensor), values)
    shutil.copytree(folder / "target", tmp_path / "target")
    draft = compiled(tmp_path, tmp_path / "head", with_baseline=False, draft={"format": "mxfp6_e2m3"}).manifest
    packed_ones = [tensor for tensor in draft.models["draft"].tensors if tensor.format == "mxfp6_e2m3"]
    assert {tensor.error for tensor in packed_ones} == {0}
    assert sum(tensor.own_codes for tensor in packed_ones) == len(packed_ones) - 1  # the head's rows are selected


def rounded(values: NDArray[np.float32], element: Any) -> NDArray[np.float32]:
    """Blocks of 32 with the scale of OCP MX, section 6.3."""
    blocks = values.reshape(len(values), -1, 32)
    _, exponents = np.frexp(np.abs(blocks).max(axis=-1, keepdims=True))
    scales = np.exp2(exponents - 1.0 - 2)
    most = float(ml_dtypes.finfo(element).max)
    kept = np.clip(blocks / scales, -most, most).astype(element).astype(np.float32) * scales
    return kept.reshape(values.shape).astype(np.float32)


def test_a_killed_run_goes_on_to_the_same_bytes(
    folder: Path, wanted: TrainingSettings, trained: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "head"

    def run(*, resume: bool) -> None:
        train_head(wanted, output, resume=resume, force=False, stages=Noted())

    with monkeypatch.context() as patched:
        patched.setattr(Examples, "add", failing_after(10, Examples.add))
        with pytest.raises(KeyboardInterrupt):
            run(resume=False)
    with pytest.raises(MxspecError, match="was left by an interrupted run: go on with --resume"):
        run(resume=False)
    with monkeypatch.context() as patched:
        patched.setattr(training, "SAVE_SECONDS", 0)
        patched.setattr(Training, "_step", failing_after(9, Training._step))
        with pytest.raises(KeyboardInterrupt):
            run(resume=True)
    run(resume=True)
    for name in ("config.json", "model.safetensors"):
        assert (output / name).read_bytes() == (folder / "head" / name).read_bytes(), name
    assert not output.with_name("head.partial").exists()


def failing_after(calls: int, wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a kill ends after some calls."""
    left = iter(range(calls))

    def call(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return wrapped(*args)

    return call


def test_training_goes_on_from_a_head_and_with_a_file(
    folder: Path, trained: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PASSES", 1)
    monkeypatch.setattr(steps, "LEAST", 4)
    (tmp_path / "my.txt").write_text("a text that says what it is, and then says it again. " * 40)
    again = TrainingSettings(str(folder / "target"), text=tmp_path / "my.txt", start=folder / "head")
    stages = Noted()
    train_head(again, tmp_path / "head", resume=False, force=False, stages=stages)
    before, after = (json.loads((place / "head" / "config.json").read_text()) for place in (folder, tmp_path))
    assert before == after
    (tmp_path / "prompts.txt").write_text("".join(f"what is {number}?\n" for number in range(40)))
    asked = TrainingSettings(str(folder / "target"), prompts=tmp_path / "prompts.txt", tokens=1500, vocabulary=100)
    train_head(asked, tmp_path / "head", resume=False, force=True, stages=stages)
    assert json.loads((tmp_path / "head" / "config.json").read_text())["draft_vocab_size"] == 100


def test_a_head_that_training_makes_worse_stays(
    folder: Path, trained: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PASSES", 1)
    monkeypatch.setattr(training, "learning_rate", lambda width: 100.0)
    again = TrainingSettings(str(folder / "target"), tokens=2000, start=folder / "head")
    stages = Noted()
    train_head(again, tmp_path / "head", resume=False, force=False, stages=stages)
    before, after = stages.rates()
    assert after[0] < before[0]
    weights = Path("head", "model.safetensors")
    assert (tmp_path / weights).read_bytes() == (folder / weights).read_bytes()
