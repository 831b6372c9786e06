"""The referee: right models pass, and every constant of a config that is wrong on one side is seen.

Constants are changed on transformers' side, where each costs a forward; some on the exporter's, too. What is compared
is the same either way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import onnx_ir as ir
import pytest
from transformers import AutoConfig, PreTrainedConfig

from mxspec.compile.check import referee
from mxspec.compile.check.referee import TOLERANCE, Twin, check_windows, compile_twin, judge
from mxspec.compile.planning.model import ModelPlan
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.trace import rotary
from mxspec.formats.errors import CheckFailed, MxspecError

CONTEXT = 96
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 120,
    "max_position_embeddings": 128,
}
ONE = {**COMMON, "num_hidden_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
YARN |= {"beta_fast": 2.0, "beta_slow": 0.5, "attention_factor": 1.3, "truncate": False, "partial_rotary_factor": 0.5}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
LONG |= {"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.5, 2.0, 3.0, 4.0]}
MULTIPLIERS = {"logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
MULTIPLIERS |= {"embedding_multiplier": 3.0}
CAPPED = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8, "attn_logit_softcapping": 50.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": ("granite", {**ONE, **MULTIPLIERS, "rope_parameters": LLAMA3}),
    "gemma2": ("gemma2", {**COMMON, **CAPPED}),
    "gpt_neox": ("gpt_neox", {**ONE, "num_key_value_heads": 4, "hidden_act": "gelu", "rope_parameters": YARN}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 120}),
    "t5": ("t5", {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_heads": 4, "vocab_size": 120}),
    "phi3": ("phi3", {**ONE, "rope_parameters": LONG, "original_max_position_embeddings": 32, "pad_token_id": 0}),
}

SIZES = {  # the shapes of weights, texts and caches: another checkpoint, not another constant
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions",
    "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "relative_attention_num_buckets",
    # tokens that end a text or are not read
    "bos_token_id", "eos_token_id", "pad_token_id",
    # of training, and of other uses of a model than its logits
    "initializer_range", "initializer_factor", "dropout_rate",
    "chunk_size_feed_forward", "label2id", "classifier_dropout", "summary_first_dropout",
    "attention_dropout", "hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "pretraining_tp",
}  # fmt: skip
# Texts that end beyond the original context have the long factors; transformers writes Phi-3's own setting of that
# length over the other. T5's projection only says its activation function, which is changed, too.
SILENT = {
    "t5": {"feed_forward_proj"},
    "phi3": {"rope_parameters.short_factor", "rope_parameters.original_max_position_embeddings"},
}
CHOICES: dict[str, Any] = {
    "relu": "gelu",
    "silu": "gelu",
    "gelu": "gelu_new",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "partial_rotary_factor": 0.75,
    "layer_types": ["full_attention", "sliding_attention"],
}
SWITCHES = {"use_parallel_residual", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"}


def make_config(name: str) -> PreTrainedConfig:
    model_type, settings = MODELS[name]
    config: PreTrainedConfig = AutoConfig.for_model(model_type, **copy.deepcopy(settings))
    return config


def other_value(key: str, value: Any) -> Any:
    """5 % more, at least 1 for whole numbers; the neighbouring choice where there are choices; None for no constant."""
    if key in SWITCHES:
        return not value
    if key in CHOICES or (isinstance(value, str) and value in CHOICES):
        return CHOICES.get(key, CHOICES.get(str(value)))
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        return None
    if isinstance(value, list):
        return [other_value(key, each) for each in value] if all(isinstance(each, float) for each in value) else None
    return value + max(1, round(value * 0.05)) if isinstance(value, int) else value * 1.05


def wrong_configs(config: PreTrainedConfig) -> Iterator[tuple[str, PreTrainedConfig]]:
    """The config with one constant changed, for each that it has."""
    for key, value in config.to_dict().items():
        nested = value if isinstance(value, dict) else {key: value}
        for inner, old in nested.items():
            if key in SIZES or (inner == "partial_rotary_factor" and "long_factor" in nested):
                continue  # as many factors as rotated pairs
            if (new := other_value(inner, old)) is None:
                continue
            wrong = copy.deepcopy(config)
            setattr(wrong, key, {**value, inner: new} if isinstance(value, dict) else new)
            yield f"{key}.{inner}" if isinstance(value, dict) else key, wrong
    wrong = copy.deepcopy(config)
    wrong.is_causal = False
    yield "is_causal", wrong


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Twin]]:
    """Call it with a name of MODELS for its compiled twin with weights of both scales."""

    @cache
    def make(name: str) -> list[Twin]:
        return list(compile_twin(make_config(name), CONTEXT, tmp_path_factory.mktemp(name)))

    return make


@pytest.mark.parametrize("name", MODELS)
def test_every_wrong_constant_is_seen(name: str, twins: Callable[[str], list[Twin]]) -> None:
    quiet, loud = twins(name)
    for twin in (quiet, loud):
        assert twin.compare().error < TOLERANCE[twin.scale] / 2
    seen, unseen = [], []
    for key, wrong in wrong_configs(loud.config):
        found = any(twin.compare(wrong).error > 2 * TOLERANCE[twin.scale] for twin in (loud, quiet))
        (seen if found else unseen).append(key)
    assert set(unseen) == SILENT.get(name, set())
    assert len(seen) > 2


def test_each_scale_sees_what_the_other_cannot(twins: Callable[[str], list[Twin]]) -> None:
    quiet, loud = twins("granite")
    theta, epsilon = copy.deepcopy(loud.config), copy.deepcopy(loud.config)
    theta.rope_parameters = {**theta.rope_parameters, "rope_theta": 10500.0}
    epsilon.rms_norm_eps *= 1.05
    assert loud.compare(theta).error > 1e-2
    assert quiet.compare(theta).error < 1e-5
    assert quiet.compare(epsilon).error > 1e-3
    assert loud.compare(epsilon).error < 1e-5


def test_scaled_rope_is_read_where_its_context_ends(twins: Callable[[str], list[Twin]]) -> None:
    """LongRoPE's factors are those of the compiled context; of a shorter text transformers would take others."""
    assert [list(twin.readings) for twin in twins("phi3")] == [[CONTEXT - 72]] * 2
    assert [sorted(twin.readings) for twin in twins("granite")] == [[0, CONTEXT - 72]] * 2


# --- an exporter that is wrong by one constant ---

FAULTS: dict[str, tuple[str, Callable[[float], float]]] = {
    "epsilon of one norm": ("epsilon", lambda value: value * 1.05),
    "scale of one attention": ("scale", lambda value: value * 1.05),
    "cap of one attention": ("softcap", lambda value: value * 1.05),
    "window of one attention": ("window", lambda value: value + 1),
}


@pytest.fixture(scope="module")
def plan_once() -> Callable[..., ModelPlan]:
    """`plan_model`, asked once: the graph is read only."""
    made: list[ModelPlan] = []

    def plan(*arguments: Any, **named: Any) -> ModelPlan:
        made.extend([] if made else [plan_model(*arguments, **named)])
        return made[0]

    return plan


@pytest.mark.parametrize("fault", FAULTS)
def test_an_exporter_that_is_wrong_by_one_constant(
    fault: str, plan_once: Callable[..., ModelPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute, change = FAULTS[fault]

    def wrong(*arguments: Any, **named: Any) -> ModelPlan:
        plan = plan_once(*arguments, **named)
        graph = plan.exported.model.clone()
        node = next(node for node in graph.graph if attribute in node.attributes and node.attributes[attribute].value)
        right = node.attributes[attribute]
        node.attributes[attribute] = ir.Attr(attribute, right.type, change(right.value))
        for value in (*graph.graph.inputs, *graph.graph.outputs) if attribute == "window" else ():
            if "capacity_of_window_8" in [str(size) for size in value.shape]:  # whose cache is named by its window
                value.shape = ir.Shape([*value.shape[:2], "capacity_of_window_9", value.shape[3]])
        return replace(plan, exported=replace(plan.exported, model=graph))

    monkeypatch.setattr(referee, "plan_model", wrong)
    with pytest.raises(CheckFailed, match=r"random weights differs from transformers by \d.\de-\d\d of the"):
        judge(make_config("gemma2"), CONTEXT)


def test_longrope_with_the_factors_of_short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was traced once: 17 % off."""
    made = rotary.RotaryTables.__init__

    def short(self: Any, module: Any, context_length: int, rotation: Any) -> None:
        monkeypatch.setitem(module.config.rope_parameters, "long_factor", LONG["short_factor"])
        made(self, module, context_length, rotation)

    monkeypatch.setattr(rotary.RotaryTables, "__init__", short)
    with pytest.raises(CheckFailed, match="loud random weights differs from transformers by"):
        judge(make_config("phi3"), CONTEXT)


def test_a_graph_that_cannot_run_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> ModelPlan:
        raise RuntimeError("a tensor\nof another shape")

    monkeypatch.setattr(referee, "plan_model", broken)
    with pytest.raises(
        MxspecError,
        match=r"granite is not supported: it cannot be compiled \(RuntimeError: a tensor of another shape\)",
    ):
        judge(make_config("granite"), CONTEXT)


# --- windows, which a twin has smaller ---


def test_windows_of_the_whole_graph() -> None:
    config = AutoConfig.for_model("gemma2", **{**COMMON, "num_hidden_layers": 4, "sliding_window": 4096})
    twin = [24, 0]
    check_windows(config, [4096, 0, 4096, 0], twin)
    for wrong, says in (
        ([4095, 0, 4096, 0], "layer 0 of the graph attends to 4095 tokens, expected 4096"),
        ([4096, 0, 0, 0], "layer 2 of the graph attends to all tokens, expected 4096"),
        ([4096, 0, 4096, 4096], "layer 3 of the graph attends to 4096 tokens, expected all"),
    ):
        with pytest.raises(CheckFailed, match=says):
            check_windows(config, wrong, twin)


def test_windows_are_read_off_a_graph(twins: Callable[[str], list[Twin]]) -> None:
    assert twins("gemma2")[0].windows == (8, 0)
    assert twins("granite")[0].windows == (0,)
