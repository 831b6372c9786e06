"""Grown checkpoints compute what the small ones compute, by transformers; their sizes are those of the shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bench.__main__ import main
from bench.shapes import grow_command as command
from bench.shapes.grow import grow, grown_sizes, sizes_of
from bench.shapes.known import DRAFT_SHAPE, SHAPES, Shape
from mxspec.formats.errors import MxspecError

DEMO = Path(__file__).parents[3] / "recipes" / "demo"


def small(folder: Path, *, tied: bool, kv_heads: int = 2) -> Path:
    """A Llama of 64 wide with four heads of 16, whose norms and heads all differ."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.half().save_pretrained(folder)
    (folder / "tokenizer.json").write_text((DEMO / "draft" / "tokenizer.json").read_text())
    return folder


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(40)[None] * 7 % 96).logits[0]
    return found


@pytest.mark.parametrize(
    ("shape", "tied", "kv_heads"),
    [
        (Shape("four times", 256, 160, layers=3, heads=16, kv_heads=4, vocab_size=96), True, 2),
        (Shape("three times", 192, 96, layers=2, heads=12, kv_heads=3, vocab_size=96), False, 2),
        (Shape("a head of keys each", 128, 96, layers=2, heads=8, kv_heads=8, vocab_size=96), True, 2),
        (Shape("fewer queries a head of keys", 256, 96, layers=2, heads=16, kv_heads=16, vocab_size=96), True, 1),
        (Shape("heads twice as wide", 256, 96, layers=2, heads=8, kv_heads=2, vocab_size=96), True, 4),
    ],
    ids=lambda value: value.name if isinstance(value, Shape) else str(value),
)
def test_logits_are_those_of_the_small_model(tmp_path: Path, shape: Shape, tied: bool, kv_heads: int) -> None:
    source = small(tmp_path / "small", tied=tied, kv_heads=kv_heads)
    sizes = grow(source, shape, tmp_path / "grown")
    want, got = logits(source), logits(tmp_path / "grown")
    assert float((want - got).abs().max()) < 3e-6 * float(want.abs().max())
    config = LlamaConfig.from_pretrained(tmp_path / "grown")
    assert sizes_of(config) == sizes
    assert (sizes.hidden, sizes.inner, sizes.layers) == (shape.hidden_size, shape.intermediate_size, shape.layers)
    assert sizes.heads * 16 == shape.heads * shape.head_size, "as many bytes of queries"
    matrices = sum(p.numel() for name, p in LlamaForCausalLM(config).named_parameters() if p.dim() == 2)
    assert matrices == sizes.read_weights + sizes.vocab * sizes.hidden


@pytest.mark.parametrize("name", ["tinyllama-1.1b", "llama-3.2-3b", "llama-2-7b"])
def test_a_step_of_the_grown_demo_reads_what_the_shape_reads(name: str) -> None:
    shape = SHAPES[name]
    demo = sizes_of(LlamaConfig.from_pretrained(DEMO / "target"))
    cache = shape.kv_heads * shape.head_size
    layer = shape.hidden_size * (2 * shape.hidden_size + 2 * cache + 3 * shape.intermediate_size)
    real = shape.layers * layer + shape.vocab_size * shape.hidden_size
    assert grown_sizes(demo, shape).read_weights == pytest.approx(real, rel=0.02)


def test_the_drafts_size_matches_its_name() -> None:
    demo = sizes_of(LlamaConfig.from_pretrained(DEMO / "draft"))
    assert round(grown_sizes(demo, DRAFT_SHAPE).read_weights / 1e6) == 68


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 160, "heads": 10}, "its width of 160 is not a multiple of the checkpoint's 64"),
        ({"layers": 1}, "has 1 layers, the checkpoint needs 2"),
        ({"intermediate_size": 48}, "has 48 neurons, the checkpoint needs 80"),
        ({"kv_heads": 1}, "has 1 heads of keys and values, the checkpoint needs 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], message: str
) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 96, "layers": 2, "heads": 8, "kv_heads": 4, "vocab_size": 96}
    monkeypatch.setitem(command.GROWN, "tinyllama-1.1b", Shape("short", **(sizes | change)))
    source = small(tmp_path / "small", tied=True)
    arguments = ["grow", str(source), "--to", "tinyllama-1.1b", "-o", str(tmp_path / "grown")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "grown").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_only_a_grown_checkpoint_is_replaced(tmp_path: Path) -> None:
    source = small(tmp_path / "small", tied=True)
    shape = Shape("same", 64, 80, layers=2, heads=4, kv_heads=2, vocab_size=96)
    grow(source, shape, tmp_path / "grown")
    with pytest.raises(MxspecError, match="exists"):
        grow(source, shape, tmp_path / "grown")
    grow(source, shape, tmp_path / "grown", force=True)
    with pytest.raises(MxspecError, match="not a grown checkpoint"):
        grow(source, shape, source, force=True)
