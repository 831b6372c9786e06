"""What an exported graph is made of: the contract's names and types, fused nodes, weights without values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from transformers import AutoConfig

from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.graph.operators import OPSET
from mxspec.compile.passes.contract import experts_of
from mxspec.formats.errors import CheckpointError, MxspecError, UnsupportedModelError
from tests.compile.outlined import exported

GEMMA4 = {"head_dim": 16, "global_head_dim": 16, "hidden_size_per_layer_input": 0, "num_key_value_heads": 2,
          "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip

Exports = Callable[[str, str, str], ExportedGraph]


def export(path: Path, context: int = 96, **wanted: Any) -> ExportedGraph:
    return exported(load_config(path), context, **{"format": "mxfp6_e3m2"} | wanted)


def write_config(path: Path, model_type: str, **settings: object) -> Path:
    AutoConfig.for_model(model_type, **settings).save_pretrained(path)
    return path


def ops(exported: ExportedGraph) -> Counter[str]:
    return Counter(node.op_type for node in exported.model.graph)


def nodes(exported: ExportedGraph, op_type: str) -> list[ir.Node]:
    return [node for node in exported.model.graph if node.op_type == op_type]


@pytest.fixture(scope="module")
def llama(tiny_export: Exports) -> ExportedGraph:
    return tiny_export("llama-tied", "fp16_tiles", "float16")


@pytest.fixture(scope="module")
def gpt2(tiny_export: Exports) -> ExportedGraph:
    return tiny_export("gpt2", "fp16_tiles", "float16")


def test_inputs_and_outputs_are_the_contract(llama) -> None:
    def described(values) -> list[str]:
        return [f"{value.name} {value.dtype.name} {value.shape}" for value in values]

    def caches(tense: str) -> list[str]:
        shape = "FLOAT16 [slots,2,capacity,16]"
        return [f"{tense}_{what}.{layer} {shape}" for layer in range(2) for what in ("key", "value")]

    assert described(llama.model.graph.inputs) == [
        "input_ids INT64 [1,tokens]",
        "position_ids INT64 [1,tokens]",
        "slots INT32 [sequences]",
        "past_lengths INT32 [sequences]",
        "new_lengths INT32 [sequences]",
        "logits_to_keep INT64 [rows]",
        *caches("past"),
    ]
    assert described(llama.model.graph.outputs) == ["logits FLOAT [rows,121]", *caches("present")]
    assert llama.model.graph.opset_imports["mxspec"] == OPSET
    assert llama.model.graph.opset_imports[""] <= 26
    assert llama.model.ir_version <= 13
    assert (llama.layers, llama.kv_heads, llama.head_size, llama.vocab_size) == (2, 2, 16, 121)
    assert (llama.architecture, llama.context_length, llama.caches) == ("LlamaForCausalLM", 96, "float16")


def test_llama_has_eight_nodes_a_layer(llama) -> None:
    a_layer = {"PackedMatMul": 4, "QkvAttention": 1, "AddRMSNorm": 2, "SwiGLU": 1}
    around = {"Gather": 4, "Cast": 1, "RMSNormalization": 1, "Squeeze": 1, "PackedMatMul": 1}
    assert ops(llama) == Counter(around) + Counter(a_layer) + Counter(a_layer)


def test_gpt2_has_eight_nodes_a_layer(gpt2) -> None:
    a_layer = {"PackedMatMul": 4, "QkvAttention": 1, "AddLayerNorm": 2, "Gelu": 1}
    around = {"Gather": 3, "Cast": 2, "AddLayerNorm": 1, "Squeeze": 1, "PackedMatMul": 1}
    assert ops(gpt2) == Counter(around) + Counter(a_layer) + Counter(a_layer)


LLAMA_LAYER = {"PackedMatMul": 4, "QkvAttention": 1, "AddRMSNorm": 2, "SwiGLU": 1}


@pytest.mark.parametrize(
    ("name", "a_layer"),
    [
        ("phi3", LLAMA_LAYER),  # cut by slices
        ("qwen3", LLAMA_LAYER),  # norms of each query and key
        ("gemma3", {"QkvAttention": 2, "GeGLU": 2}),  # the same, weights less one
        ("olmo2", {**LLAMA_LAYER, "RMSNormalization": 2, "AddRMSNorm": 1, "Add": 1}),  # norms of all of them
        ("gpt_neox", {"QkvAttention": 1, "LayerNormalization": 2, "AddLayerNorm": 1}),  # alternating, head by head
        ("phi", {"QkvAttention": 1, "PackedMatMul": 4, "AddLayerNorm": 1}),  # rotates slices
        ("opt", {"QkvAttention": 1, "PackedMatMul": 4, "AddLayerNorm": 3}),  # scales queries; its MLP has flat rows
    ],
)
def test_attention_reads_the_product(name, a_layer, tiny_export) -> None:
    counts = ops(tiny_export(name, "fp16_tiles", "float32"))
    counts["PackedMatMul"] -= 1  # the head
    counts["RMSNormalization"] -= name in ("phi3", "qwen3")  # in front of the first layer
    assert {op: counts[op] for op in a_layer} == a_layer
    views = {"Split", "Slice", "Reshape", "Concat", "Transpose", "Shape"}
    assert not counts.keys() & (views | {"Attention", "RotaryEmbedding"})


def test_the_attributes_of_attention(tiny_export) -> None:
    """Norm weights, epsilon and order of the heads; a scale of the queries is part of its own."""
    qwen3, olmo2, neox, opt = (
        nodes(tiny_export(name, "fp16_tiles", "float32"), "QkvAttention")[0]
        for name in ("qwen3", "olmo2", "gpt_neox", "opt")
    )
    assert [value.name for value in qwen3.inputs[8:]] == [f"model.layers.0.self_attn.{x}_norm.weight" for x in "qk"]
    assert [list(value.shape) for value in olmo2.inputs[8:]] == [[64], [32]]
    assert qwen3.attributes["norm_epsilon"].as_float() == pytest.approx(1e-6)
    assert ("interleaved" in qwen3.attributes, neox.attributes["interleaved"].as_int()) == (False, 1)
    assert len(neox.inputs) == 8
    assert opt.attributes["scale"].as_float() == 16**-0.5


def test_attention_and_mlp_of_one_norm_have_their_own_products(tiny_export) -> None:
    names = {spec.name for spec in tiny_export("phi", "fp16_tiles", "float32").weights}
    assert {"model.layers.0.self_attn.q_proj+k_proj+v_proj.weight", "model.layers.0.mlp.fc1.weight"} <= names


def test_fusions_that_only_some_models_have(tiny_export) -> None:
    """Fused operators that some models have, and some in a part of their layers."""
    layers = nodes(tiny_export("smollm3", "fp16_tiles", "float32"), "QkvAttention")
    assert [len(node.inputs) for node in layers] == [8, 6]  # with rotation and without
    gemma = ops(tiny_export("gemma2", "fp16_tiles", "float32"))
    assert (gemma["GeGLU"], gemma["Gelu"], gemma["AddRMSNorm"]) == (2, 0, 4)
    ragged = ops(tiny_export("llama-ragged", "mxfp6_e3m2", "float16"))  # gate and up are two products
    assert (ragged["SwiGLU"], ragged["Sigmoid"]) == (0, 1)


@pytest.mark.parametrize(
    ("name", "tied"),
    [("llama-tied", ["model.embed_tokens.weight"]), ("gpt2", ["transformer.wte.weight"]), ("llama", [])],
)
def test_every_parameter_is_stored_once_and_a_tied_one_twice(name, tied, tiny_checkpoint, tiny_export) -> None:
    exported = tiny_export(name, "fp16_tiles", "float16" if tied else "float32")
    used = Counter(source for spec in exported.weights for source in spec.sources)
    assert set(used) == {parameter for parameter, _ in tiny_checkpoint(name)[1].named_parameters()}
    assert [source for source, times in used.items() if times > 1] == tied
    initializers = exported.model.graph.initializers
    valueless = {name for name, value in initializers.items() if value.const_value is None}
    assert valueless == {spec.name for spec in exported.weights}
    for spec in exported.weights:
        value = initializers[spec.name]
        assert tuple(value.shape) == spec.stored_shape, spec
        assert value.dtype.numpy() == spec.stored_dtype, spec
    assert all(value.const_value is None or value.const_value.size <= 64 for value in initializers.values())


def test_kinds_of_weights(llama, gpt2) -> None:
    by_name = {spec.name: spec for spec in (*llama.weights, *gpt2.weights)}
    assert by_name["model.embed_tokens.weight"].kind == "embedding"
    assert by_name["transformer.wpe.weight"].kind == "embedding"
    assert by_name["model.norm.weight"].kind == "float32"
    assert by_name["transformer.h.0.attn.c_attn.weight"].transpose
    assert by_name["transformer.h.0.attn.c_attn.weight"].shape == (192, 64)
    assert by_name["model.rotary_emb.cos"].value.shape == (96, 8)
    fused = by_name["model.layers.1.self_attn.q_proj+k_proj+v_proj.weight"]
    assert (fused.shape, fused.stored_shape) == ((128, 64), (8, 2048))
    assert fused.sources == tuple(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")


def test_only_equal_formats_and_whole_tiles_are_stacked(tmp_path, tiny_checkpoint) -> None:
    path, _ = tiny_checkpoint("llama-tied")
    mixed = export(path, format="mxfp6_e2m3", keep_fp16=("*k_proj*",))
    names = {spec.name: spec.format for spec in mixed.weights if spec.kind == "matmul"}
    assert names["model.layers.0.self_attn.q_proj+v_proj.weight"] == "mxfp6_e2m3"
    assert names["model.layers.0.self_attn.k_proj.weight"] == "fp16_tiles"
    assert ops(mixed)["Attention"] == 2
    assert ops(mixed)["QkvAttention"] == 0
    settings = json.loads((path / "config.json").read_text()) | {"intermediate_size": 72, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    ragged = {spec.name for spec in export(tmp_path).weights}
    assert {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"} <= ragged


def test_attention_gets_scale_softcap_and_window(tiny_export) -> None:
    attributes = [
        {name: attribute.value for name, attribute in node.attributes.items()}
        for node in nodes(tiny_export("gemma2", "fp16_tiles", "float32"), "QkvAttention")
    ]
    assert [a["window"] for a in attributes] == [8, 0]
    assert [a["softcap"] for a in attributes] == [2.0, 2.0]
    assert [a["scale"] for a in attributes] == pytest.approx([24**-0.5] * 2)


def test_a_large_model_needs_no_memory(tmp_path) -> None:
    def anonymous_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("RssAnon:")[1].split()[0])

    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8}
    write_config(tmp_path, "llama", **sizes, num_hidden_layers=1, vocab_size=128256, max_position_embeddings=2048)
    before = anonymous_bytes()
    exported = export(tmp_path)
    assert sum(spec.stored_bytes for spec in exported.weights) > 2e9
    assert anonymous_bytes() - before < 2e8


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("deepseek_v2", {"n_routed_experts": 0}, "is a model with multi-head latent attention"),
        ("switch_transformers", {}, r"is a mixture of experts with an encoder \(num_experts: 8\)"),
        ("marian", {"decoder_vocab_size": 100}, r"another vocabulary than it reads \(decoder_vocab_size: 100\)"),
        ("whisper", {}, "is a model of speech: such models are not supported"),
        ("mamba", {}, "is a model with layers of linear_attention"),
        ("qwen3_next", {"num_hidden_layers": 4}, "is a model with layers of linear_attention"),
        ("llama", {"is_causal": False}, "is an encoder, which sees what follows"),
        ("gpt2", {"add_cross_attention": True}, "is a decoder that wants another model's states"),
        (
            "llama",
            {"num_key_value_heads": 2, "quantization_config": {"quant_method": "fp8"}},
            r"quantization_config\.quant_method",
        ),
        ("gemma3n_text", {"num_hidden_layers": 35}, r"is a model of several residual streams \(altup_num_inputs: 4\)"),
        ("gemma4_text", {**GEMMA4, "global_head_dim": 32}, r"layers have different heads \(head_dim: 16 and 32\)"),
        ("gemma4_text", {**GEMMA4, "hidden_size_per_layer_input": 8}, "is a model with an embedding for each layer"),
        ("gemma4_text", {**GEMMA4, "num_kv_shared_layers": 1}, "is a model whose layers share keys and values"),
        (
            "gemma4_text",
            {**GEMMA4, "enable_moe_block": True},
            r"a mixture of experts beside plain layers \(enable_moe_block: True\)",
        ),
        (
            "gemma4",
            {"text_config": {**GEMMA4, "global_head_dim": 32}},
            "gemma4_text is a model whose layers have different",
        ),
        ("opt", {"hidden_size": 68, "word_embed_proj_dim": 68}, "multiple of 2, got keys of 17"),
    ],
)
def test_unsupported_models_are_refused_in_one_line(model_type, settings, message, tmp_path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 120}
    write_config(tmp_path, model_type, **sizes | settings)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        export(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("context", "factor"), [(8, 1.0), (9, 2.0)])
def test_longrope_has_the_factors_of_the_compiled_context(context, factor, tiny_checkpoint) -> None:
    """Of the first frequency: the short factor up to the original 8 positions, the long one beyond."""
    exported = export(tiny_checkpoint("phi3-longrope")[0], context=context)
    values = {spec.name: spec.value for spec in exported.weights}
    inside = exported.model.graph.initializers  # where the smallest tables stay
    names = (f"model.rotary_emb.{function}" for function in ("sin", "cos"))
    sin, cos = (values[name] if name in values else inside[name].const_value.numpy() for name in names)
    assert sin[1, 0] / cos[1, 0] == pytest.approx(np.tan(1 / factor))
    assert exported.notes == (f"longrope rotary embedding: the frequencies are those of {context} tokens",)


def test_missing_configs_are_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        export(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(MxspecError, match="transformers has no model type 'no-such-model'"):
        export(tmp_path)


def test_a_mixture_says_how_many_experts_a_token_chooses(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 120}
    config = write_config(
        tmp_path, "olmoe", **sizes, intermediate_size=32, num_experts=8, num_experts_per_tok=3, eos_token_id=2
    )
    exported = export(config)
    assert exported.experts is not None
    assert (exported.experts.count, exported.experts.chosen) == (8, 3)
    assert {spec.name for spec in exported.weights if "experts" in spec.name} == set(exported.experts.tensors)
    nodes(exported, "PackedExperts")[1].attributes["experts"] = ir.AttrInt64("experts", 4)
    with pytest.raises(UnsupportedModelError, match=r"different numbers of experts \(3 of 4, 3 of 8\)"):
        experts_of(exported.model)
