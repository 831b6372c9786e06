"""Small twins of large checkpoints: the same options, small enough to run, and really run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig

from mxspec.compile.check import check_model
from mxspec.compile.check.check_model import check_twin
from mxspec.compile.check.specialize import check_specializations
from mxspec.compile.check.twin import LOUD, QUIET, layers_of_each_kind, shrink, write_twin
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.model import Model
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe

LARGE = {"hidden_size": 64, "intermediate_size": 5632, "num_hidden_layers": 12, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 32000, "pad_token_id": 31999, "eos_token_id": 2}  # fmt: skip


def test_shrink_keeps_options_and_heads() -> None:
    large = AutoConfig.for_model("llama", **LARGE, rope_theta=5e5)
    small = shrink(large)
    assert (small.num_hidden_layers, small.vocab_size, small.intermediate_size) == (2, 512, 512)
    assert (small.hidden_size, small.num_attention_heads, small.num_key_value_heads) == (64, 4, 2)
    assert small.rope_parameters == large.rope_parameters
    assert large.num_hidden_layers == 12


def test_shrink_takes_configs_that_must_name_special_tokens() -> None:
    small = shrink(AutoConfig.for_model("cwm", **LARGE))
    assert (small.bos_token_id, small.pad_token_id, small.vocab_size) == (0, None, 512)


def test_shrink_keeps_one_layer_of_each_kind() -> None:
    large = AutoConfig.for_model("gemma3_text", **LARGE, head_dim=16, sliding_window=8)
    small = shrink(large)
    assert small.layer_types == ["sliding_attention", "full_attention"]
    assert layers_of_each_kind(large) == [0, 5]
    assert layers_of_each_kind(AutoConfig.for_model("llama", **LARGE)) == [0, 1]


def test_shrink_knows_other_names_of_the_sizes() -> None:
    small = shrink(AutoConfig.for_model("gpt2", n_layer=12, n_embd=64, n_head=4, vocab_size=50257))
    assert (small.n_layer, small.vocab_size, small.n_embd) == (2, 512, 64)


def test_shrink_narrows_layers_that_do_not_depend_on_heads() -> None:
    """The width of the hidden states where heads have a size of their own, the number of heads where they have not."""
    wide = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_attention_heads": 32}
    llama = shrink(AutoConfig.for_model("llama", **wide, num_key_value_heads=8))
    assert (llama.hidden_size, llama.head_dim, llama.num_attention_heads, llama.num_key_value_heads) == (256, 64, 32, 8)
    neox = shrink(AutoConfig.for_model("gpt_neox", **wide))
    assert (neox.hidden_size, neox.num_attention_heads) == (512, 8)
    opt = shrink(AutoConfig.for_model("opt", **wide, ffn_dim=8192, word_embed_proj_dim=2048))
    assert (opt.hidden_size, opt.num_attention_heads, opt.ffn_dim, opt.word_embed_proj_dim) == (512, 8, 512, 512)
    bloom = shrink(AutoConfig.for_model("bloom", **wide))
    assert (bloom.hidden_size, bloom.num_attention_heads) == (2048, 32)  # the slopes of ALiBi hang on their number


def test_queries_are_normed_whole_where_the_norm_has_the_width_of_the_states() -> None:
    """OLMoE's norms of queries do not follow a head's size, though its projections do."""
    olmoe = shrink(AutoConfig.for_model("olmoe", hidden_size=2048, num_attention_heads=16))
    assert olmoe.hidden_size == olmoe.num_attention_heads * 128 < 2048
    qwen = shrink(AutoConfig.for_model("qwen3", hidden_size=2048, num_attention_heads=16, head_dim=256))
    assert (qwen.hidden_size, qwen.num_attention_heads, qwen.head_dim) == (256, 16, 256)


def test_shrink_has_windows_that_a_short_text_leaves() -> None:
    assert shrink(AutoConfig.for_model("mistral", **LARGE, sliding_window=4096)).sliding_window == 24
    assert shrink(AutoConfig.for_model("mistral", **LARGE, sliding_window=None)).sliding_window is None


def test_a_twin_is_a_checkpoint(tmp_path: Path) -> None:
    write_twin(AutoConfig.for_model("llama", **LARGE), tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors["model.layers.1.mlp.up_proj.weight"].shape == (512, 64)
        head, query, key = (
            checkpoint.tensors[f"{name}.weight"].read_rows(0, 32).astype(np.float32)
            for name in ("lm_head", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj")
        )
    assert abs(head.std() * 8 / LOUD.gain - 1) < 0.05
    assert not np.array_equal(query, key)  # one taken for the other would not show


def test_the_noise_does_not_repeat_itself_row_by_row(tmp_path: Path) -> None:
    """Heads that are the same could be taken for one another."""
    sizes = LARGE | {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 16}
    write_twin(AutoConfig.for_model("gpt_neox", **sizes, sliding_window=8), tmp_path, QUIET)
    with Checkpoint(tmp_path) as checkpoint:
        rows = checkpoint.tensors["gpt_neox.layers.0.attention.query_key_value.weight"].read_rows(0, 1536)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_twin_is_run_at_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    large = AutoConfig.for_model("gpt2", n_layer=3, n_embd=32, n_head=2, n_positions=64, vocab_size=600)
    ran: list[tuple[int, ...]] = []
    formats: list[str] = []
    looked_up: list[bool] = []

    def run(folder: Path, entry: ModelEntry, vocab_size: int, lengths: Sequence[int]) -> None:
        ran.append(tuple(lengths))
        formats.append(entry.format)
        looked_up.append(any(tensor.looked_up for tensor in entry.tensors))
        check_specializations(folder, entry, vocab_size, lengths)

    monkeypatch.setattr(check_model, "check_specializations", run)
    wanted = TargetRecipe(checkpoint="x", keep_fp16=("*.h.2.*",))  # a layer that the twin does not have
    recipe = Recipe(name="x", k_max=3, prefill_chunk=8, target=wanted, draft=DraftRecipe(checkpoint="x"))
    for shares_table in (False, True):
        model = Model("target", large, wanted, recipe, 32, (1,) if shares_table else ())
        plan: Any = SimpleNamespace(weight_format="mxfp4_e2m1", shares_table=shares_table)
        model.plan = plan
        check_twin(model)
    assert ran == [(1, 4, 8)] * 2
    assert formats == ["mxfp4_e2m1"] * 2  # the plan's, which is the checkpoint's own where that is MX
    assert looked_up == [False, True]


def test_a_twin_has_the_buffers_that_checkpoints_have(tmp_path: Path) -> None:
    """transformers leaves those that a checkpoint lacks as memory happens to be. Both scales share one graph."""
    stored = {}
    for scale in (QUIET, LOUD):
        folder = tmp_path / scale.name
        folder.mkdir()
        write_twin(AutoConfig.for_model("apertus", **{**LARGE, "intermediate_size": 96}), folder, scale)
        stored[scale.name] = {k: v for k, v in load_file(folder / "model.safetensors").items() if "act_fn" in k}
    quiet, loud = stored.values()
    assert {name.rpartition(".")[2] for name in quiet} == {"alpha_n", "alpha_p", "beta", "eps"}
    for name in (name for name in quiet if name.endswith(("beta", "eps"))):
        assert quiet[name] == loud[name] != 0.5
