"""Broken and hostile checkpoints: each is one line with exit code 1 before anything is computed, and leaves nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from mxspec.compile import pipeline
from mxspec.compile.commands.speccompile import main
from mxspec.compile.open_models import check_prompt_parts
from tests.compile.commands.test_speccompile import write_pair

CONFIG, WEIGHTS, TOKENIZER, INDEX = (
    "config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json",
)  # fmt: skip
UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
Damage = Callable[[Path], object]


def settings(**changes: Any) -> Damage:
    return in_json(CONFIG, lambda found: found.update(changes))


def in_json(name: str, change: Callable[[Any], object]) -> Damage:
    def damage(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        change(found)
        (folder / name).write_text(json.dumps(found))

    return damage


def tensors(**changes: Any) -> Damage:
    """Tensors in the place of others, by the last parts of their names; None for one that is missing."""

    def damage(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        names = {"up": UP, "norm": NORM}
        new = {names[short]: change(found[names[short]]) for short, change in changes.items()}
        save_file({name: value for name, value in (found | new).items() if value is not None}, folder / WEIGHTS)

    return damage


def cut(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def holding(name: str, content: str | bytes, *, without: str = "") -> Damage:
    def damage(folder: Path) -> None:
        if without:
            (folder / without).unlink()
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def folder_for(name: str, *, without: str = "") -> Damage:
    def damage(folder: Path) -> None:
        (folder / (without or name)).unlink()
        (folder / name).mkdir()

    return damage


def link_for(name: str, to: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(to)

    return damage


def rope(**parameters: Any) -> Damage:
    return settings(rope_parameters={"rope_type": "default", **parameters})


def normalizer(*steps: dict[str, Any]) -> Damage:
    return in_json(TOKENIZER, lambda found: found.update(normalizer={"type": "Sequence", "normalizers": list(steps)}))


def vocabulary(**ids: Any) -> Damage:
    return in_json(TOKENIZER, lambda found: found["model"]["vocab"].update(ids))


BOMB = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
HOSTILE: list[tuple[Damage, str]] = [
    (settings(hidden_size=65), "not a multiple of the number of attention heads"),
    (settings(hidden_size=128), f"{CONFIG}, which belongs to another checkpoint"),
    (settings(num_hidden_layers=3), "no tensor for model.layers.2"),
    (settings(vocab_size=129), "which belongs to another checkpoint"),
    (settings(vocab_size=1), "which belongs to another checkpoint"),
    (settings(max_position_embeddings=1 << 26), "--context-length"),
    (settings(max_position_embeddings=1), "k_max: got 8"),
    (settings(max_position_embeddings="64"), "max_position_embeddings: got '64'"),
    (settings(head_dim=17), "even rotary dimension"),
    (settings(head_dim=0), "head_dim: got 0"),
    (rope(rope_theta=None), "transformers cannot build it"),
    (rope(rope_theta={}), "transformers cannot build it"),
    (rope(rope_type="yarn"), "Missing required keys"),
    (settings(rope_parameters=[1]), "rope_parameters"),
    (settings(hidden_act=["silu"]), "hidden_act"),
    (settings(attention_dropout="x"), "attention_dropout"),
    (settings(tie_word_embeddings="yes"), "tie_word_embeddings"),
    (settings(quantization_config=[1]), "quantization_config: got [1], expected an object"),
    (settings(quantization_config={}), "quant_method: got none"),
    (settings(quantization_config={"quant_method": "gptq", "bits": 4}), "quant_method: got 'gptq'"),
    (settings(dtype="x"), CONFIG),
    (settings(text_config={"model_type": "llama"}), "transformers cannot build it"),
    (settings(is_encoder_decoder=True), "not supported"),
    (settings(layer_types=["mamba"] * 2), "not supported"),
    (settings(eos_token_id="x"), "eos_token_id"),
    (settings(pad_token_id=10**6), "transformers cannot build it"),
    (settings(model_type="mllama"), "a model of images and text"),
    (settings(model_type="gpt2"), "no tensor for transformer.wte.weight"),
    (cut(CONFIG, 40), "not valid JSON"),
    (cut(CONFIG, 0), "not valid JSON"),
    (folder_for(CONFIG), "no config.json"),
    (link_for(CONFIG, CONFIG), "no config.json"),
    (link_for(CONFIG, "/dev/zero"), "no config.json"),
    (holding(CONFIG, "[" + "1," * 9_000_000 + "1]"), "bytes, at most"),
    (holding(CONFIG, '{"a":' * 5000 + "1" + "}" * 5000), "not valid JSON"),
    (cut(WEIGHTS, -7), "tensors end at"),
    (cut(WEIGHTS, 4), "cut short"),
    (folder_for(WEIGHTS), "neither model.safetensors nor"),
    (link_for(WEIGHTS, "/nowhere"), "neither model.safetensors nor"),
    (link_for(WEIGHTS, "/dev/zero"), "neither model.safetensors nor"),
    (holding(WEIGHTS, POINTER), "git-lfs pointer"),
    (holding(WEIGHTS, "<html>" * 100), "cut short"),
    (folder_for("pytorch_model.bin", without=WEIGHTS), "neither model.safetensors nor"),
    (holding(INDEX, '{"weight_map": {"x": "gone.safetensors"}}', without=WEIGHTS), "gone.safetensors: No such file"),
    (tensors(up=lambda value: None), f"no tensor for {UP}"),
    (tensors(up=lambda value: value.T.contiguous()), "has shape [64, 96]"),
    (tensors(up=lambda value: value[:0]), "has shape [0, 64]"),
    (tensors(norm=lambda value: value[0].clone()), "has shape []"),
    (tensors(up=lambda value: value.to(torch.int8)), "is I8, expected float32"),
    (tensors(up=lambda value: value.double()), "is F64, expected float32"),
    (cut(TOKENIZER, 100), "cannot be read as a tokenizer"),
    (folder_for(TOKENIZER), "no tokenizer.json"),
    (link_for(TOKENIZER, "/nowhere"), "no tokenizer.json"),
    (holding(TOKENIZER, "[]"), "cannot be read as a tokenizer"),
    (vocabulary(w3=-3), "cannot be read as a tokenizer"),
    (vocabulary(w3=10**12), "cannot be read as a tokenizer"),
    (normalizer({"type": "Nope"}), "cannot be read as a tokenizer"),
    (normalizer(*[BOMB] * 8), "times as long"),
    (holding("tokenizer.model", b"\x0a\x0e", without=TOKENIZER), "tokenizer.model is cut short"),
    (holding("generation_config.json", '{"do_sample": true, "temperature": "x"}'), "temperature"),
    (holding("generation_config.json", '{"a'), "not valid JSON"),
    (holding("generation_config.json", '{"eos_token_id": 9999999}'), "eos_token_id 9999999 is not one of"),
    (holding("generation_config.json", '{"forced_eos_token_id": 9999999}'), "forced_eos_token_id: got 9999999"),
    (holding("chat_template.jinja", "{% for %}"), "the chat template is invalid"),
    (holding("tokenizer_config.json", '{"chat_template": 1}'), "neither text nor named texts"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("good"), "llama").parent / "target"


@pytest.mark.parametrize(("damage", "says"), HOSTILE)
def test_a_hostile_checkpoint_is_one_line(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, says: str
) -> None:
    def judge(*_: object) -> None:
        raise AssertionError("something is computed of it")

    monkeypatch.setattr(pipeline, "judge_models", judge)
    place = tmp_path / "out" / "x.bundle"
    folder = shutil.copytree(good, tmp_path / "checkpoint")
    damage(folder)
    result = CliRunner().invoke(main, [str(folder), "-o", str(place)])
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, len(errors)) == (1, 1), result.output
    assert says in errors[0]
    assert not place.parent.exists() or not list(place.parent.iterdir())


def test_a_chat_template_that_writes_no_chat_is_a_warning(tmp_path: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_text("{{ raise_exception('ask the system') }}")
    warning = check_prompt_parts(tmp_path, 10, is_encoder_decoder=False)
    assert warning == ("a chat of one message cannot be written: messages: the chat template fails: ask the system")
    template.write_text("{{ messages[0].content }}")
    assert check_prompt_parts(tmp_path, 10, is_encoder_decoder=False) is None
