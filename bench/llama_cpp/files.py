"""One pair in the formats of both programs: gguf files for the peer, bundles for us, each made once."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.llama_cpp.build import Peer, source_of
from mxspec.formats.errors import MxspecError
from mxspec.formats.weight_format import Activations

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent.parent / "recipes" / "demo"
TARGET_SHAPE, DRAFT_SHAPE = "tinyllama-1.1b", "draft-68m"
F16 = "F16"
CONTEXT = 1024  # tokens: what the demo pair knows
K_MAX = 8
CALIBRATION_TOKENS = 4096  # few, because a grown model repeats its weights and its forward pass is slow


@dataclass(frozen=True, slots=True)
class Pair:
    """Checkpoints: the target, and its drafts by name."""

    target: Path
    drafts: dict[str, Path]


def grown_pair(folder: Path, target: Path | None, draft: Path | None) -> Pair:
    """The demo pair at the size of users' models; a model that is not given is grown below `folder` if it is missing.

    There are two drafts: the demo's own, which costs nearly nothing, and one that costs what users' drafts cost.
    """
    target = target or _grown(DEMO / "target", TARGET_SHAPE, folder / "target")
    draft = draft or _grown(DEMO / "draft", DRAFT_SHAPE, folder / "draft")
    return Pair(target, {"demo draft": DEMO / "draft", "68M draft": draft})


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--target, --draft and --text, which default to the demo pair, grown into the work folder, and held-out source."""
    folder = click.Path(path_type=Path, exists=True, file_okay=False)
    for option in (
        text_option,
        click.option("--draft", type=folder, help="Large draft of the pair.  [default: the demo's, grown]"),
        click.option("--target", type=folder, help="Target of the pair.  [default: the demo's, grown]"),
    ):
        command = option(command)
    return command


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
text_option = click.option("--text", type=_FILE, help="UTF-8 text to read.  [default: held-out source]")


def published_options(command: Callable[..., Any], *, required: bool = False) -> Callable[..., Any]:
    """--gguf and --bundle, a published model of both programs."""
    folder = click.Path(path_type=Path, exists=True, file_okay=False)
    bundles = click.option(
        "--bundle", "bundles", type=folder, multiple=True, help="A bundle of the model of --gguf (repeatable)."
    )
    return click.option("--gguf", type=_FILE, required=required, help="A published model; needs --bundle.")(
        bundles(command)
    )


def require_both(gguf: Path | None, bundles: Sequence[Path]) -> None:
    """Raises UsageError for a published model of one program alone."""
    if (gguf is None) == bool(bundles):
        raise click.UsageError("--gguf and --bundle go together")


def _grown(checkpoint: Path, shape: str, output: Path) -> Path:
    if not output.exists():
        _run([sys.executable, "-m", "bench", "grow", checkpoint, "--to", shape, "-o", output])
    return output


def held_out_text(folder: Path) -> Path:
    """Source code that the demo pair was not trained on."""
    path = folder / "held_out.py"
    if not path.exists():
        text = subprocess.run(
            [sys.executable, DEMO / "train.py", "held-out"], check=True, stdout=subprocess.PIPE
        ).stdout
        path.write_bytes(text)
    return path


# --- the peer's -------------------------------------------------------------------------------------------------


def gguf_file(folder: Path, binaries: Path, checkpoint: Path, name: str, weights: str) -> Path:
    """A checkpoint as the peer's file, by its own converter and quantiser."""
    path = folder / f"{name}-{weights}.gguf"
    if not path.exists():
        partial = path.with_suffix(".new")
        if weights == F16:
            _run([sys.executable, HERE / "convert.py", source_of(folder).resolve(), checkpoint.resolve(), partial])
        else:
            whole = gguf_file(folder, binaries, checkpoint, name, F16)
            _run([binaries / "llama-quantize", whole, partial, weights])
        partial.rename(path)
    return path


def packed_again(folder: Path, binaries: Path, file: Path, weights: str) -> Path:
    """A GGUF file in another format, by the peer's quantiser, even if its values were rounded before."""
    path = folder / f"{file.stem}-{weights}.gguf"
    if not path.exists():
        partial = path.with_suffix(".new")
        _run([binaries / "llama-quantize", "--allow-requantize", file, partial, weights])
        partial.rename(path)
    return path


def published_files(peer: Peer, gguf: Path) -> dict[str, Path]:
    """A published model: the peer's file as it is and in two more of its formats, by the names of the formats."""
    again = {name: packed_again(peer.work, peer.binaries, gguf, name) for name in ("Q8_0", "Q6_K")}
    return {gguf.stem.rpartition(".")[2]: gguf, **again}


# --- ours -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """How one of our models is stored."""

    format: str  # as `speccompile --target-format` takes it
    activations: Activations
    calibrate: Path | None = None  # a text to round by with gptq; None rounds to nearest

    def __str__(self) -> str:
        activations = "" if self.format == "fp16" else f", {self.activations} rows"
        return self.format + activations + (", gptq" if self.calibrate else "")

    @property
    def file_name(self) -> str:
        return f"{self.format}-{self.activations}" + ("-gptq" if self.calibrate else "")


def bundle(folder: Path, pair: Pair, target: Packed, draft_name: str, draft: Packed) -> Path:
    """A bundle of the target and one draft."""
    path = folder / f"{target.file_name}-{draft_name.replace(' ', '-')}.bundle"
    if not path.exists():
        of_target = ["--target-format", target.format, "--activations", target.activations]
        rounding: list[str | Path] = ["--rounding-minutes", "0"]
        if target.calibrate:
            tokens = ["--calibration-tokens", str(CALIBRATION_TOKENS)]
            rounding = ["--rounding", "gptq", "--calibrate", target.calibrate, *tokens]
        of_draft = ["--draft-format", draft.format, "--draft-activations", draft.activations]
        shape = ["--k-max", str(K_MAX), "--context-length", str(CONTEXT)]
        models: list[str | Path] = [pair.target, "--draft", pair.drafts[draft_name]]
        _run([_command("speccompile"), *models, *of_target, *rounding, *of_draft, *shape, "-o", path])
    return path


def _command(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def _run(command: Sequence[str | Path]) -> None:
    """Run a program, which prints its own errors; raises MxspecError if it fails."""
    code = subprocess.run(command, stdout=sys.stderr).returncode
    if code:
        raise MxspecError(f"{Path(command[0]).name} ended with {code}: {shlex.join(map(str, command))}")
