"""speccompile from end to end on tiny random pairs, and everything that may go wrong on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mxspec.compile import pipeline
from mxspec.compile.checkpoint import fetch
from mxspec.compile.commands.speccompile import main
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.pair import usable_ids
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed
from mxspec.formats.generation import NO_RULES
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from tests.compile.checkpoint.test_adapter import write_adapter

VOCABULARY = 120
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
LLAMA = {"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, **IDS}
GPT2 = {"n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, **IDS}
# The targets have padded vocabularies or tied heads, the drafts are narrower.
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": (
        "llama",
        {**LLAMA, "hidden_size": 64, "vocab_size": VOCABULARY + 8, "max_position_embeddings": 96},
        {**LLAMA, "hidden_size": 32, "vocab_size": VOCABULARY, "tie_word_embeddings": True},
    ),
    "gpt2": ("gpt2", {**GPT2, "n_embd": 64}, {**GPT2, "n_embd": 32, "tie_word_embeddings": False}),
}


def write_tokenizer(folder: Path, *, swap: bool = False) -> None:
    """A tokenizer of whole words; `swap` exchanges two ids, which leaves the size as it is."""
    words = [f"w{i}" for i in range(VOCABULARY)]
    if swap:
        words[3], words[5] = words[5], words[3]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def random_model(model_type: str, settings: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    return model.half().float().eval()


def write_pair(folder: Path, name: str, **recipe: object) -> Path:
    """Checkpoints, tokenizers and recipe of a pair; returns the path of the recipe."""
    model_type, *both = PAIRS[name]
    for role, settings in zip(("target", "draft"), both, strict=True):
        random_model(model_type, settings).half().save_pretrained(folder / role)
        write_tokenizer(folder / role)
    lines = [f'name = "{name}"', "k_max = 4", "prefill_chunk = 16"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in recipe.items()]
    (folder / "recipe.toml").write_text(
        "\n".join([*lines, "[target]", 'checkpoint = "./target"', "[draft]", 'checkpoint = "./draft"'])
    )
    return folder / "recipe.toml"


def write_words(path: Path, count: int) -> Path:
    """A text of words that the tokenizer knows."""
    words = np.random.default_rng(0).integers(3, VOCABULARY, count)
    path.write_text(" ".join(f"w{word}" for word in words))
    return path


def write_mixture(folder: Path) -> Path:
    """A mixture of experts of two layers without a draft; returns the path of the recipe."""
    routed = {"num_experts": 8, "num_experts_per_tok": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 96}
    random_model("olmoe", {**LLAMA, "hidden_size": 64, **routed}).half().save_pretrained(folder / "target")
    write_tokenizer(folder / "target")
    lines = ['name = "mixture"', "prefill_chunk = 16", "[target]", 'checkpoint = "./target"']
    (folder / "recipe.toml").write_text("\n".join(lines))
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Recipes of the pairs, made once; nothing may be changed there."""
    made: dict[str, Path] = {}

    def recipe(name: str) -> Path:
        if name not in made:
            made[name] = write_pair(tmp_path_factory.mktemp(name), name)
        return made[name]

    return recipe


@pytest.fixture(scope="module")
def compiled(recipes: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The Llama pair compiled with a baseline, and how the command ended."""
    path = tmp_path_factory.mktemp("compiled") / "llama.bundle"
    return path, speccompile(recipes("llama"), "-o", path, "--with-baseline", "--json")


def speccompile(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def done(*args: object) -> Result:
    """How a command ended that should succeed."""
    result = speccompile(*args)
    assert result.exit_code == 0, result.output
    return result


def failed(result: Result, exit_code: int = 1) -> str:
    """The last line on standard error of a command that failed as it should."""
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    line = result.stderr.rstrip().splitlines()[-1]
    assert line.startswith("error: ")
    return line


def pickle_weights(folder: Path) -> None:
    """model.safetensors in the older form."""
    path = folder / "model.safetensors"
    torch.save(load_file(path), folder / "pytorch_model.bin")
    path.unlink()


def test_pickled_weights_are_the_same_weights(compiled: tuple[Path, Result], tmp_path: Path) -> None:
    recipe = write_pair(tmp_path, "llama")
    for role in ("target", "draft"):
        pickle_weights(tmp_path / role)
    line = failed(speccompile(recipe, "-o", tmp_path / "x.bundle"))
    assert f"{tmp_path / 'target'}: pickled weights only" in line
    assert "--from-pickle" in line
    generation = {"suppress_tokens": [5], "forced_eos_token_id": 2, "num_beams": 4}  # weights are the same with it
    (tmp_path / "target" / "generation_config.json").write_text(json.dumps(generation))
    result = done(recipe, "-o", tmp_path / "x.bundle", "--from-pickle")
    assert "generation settings of the checkpoint that are not applied: num_beams 4; to have them" in result.stderr
    manifest, other = Bundle.open(tmp_path / "x.bundle").manifest, Bundle.open(compiled[0]).manifest
    assert manifest.generation.suppressed == (5,)
    assert manifest.generation.forced_last == (2,)
    assert other.generation == NO_RULES
    assert (manifest.recipe["from_pickle"], other.recipe["from_pickle"]) == (True, False)
    for model in ("target", "draft"):
        name = manifest.models[model].weights
        assert manifest.files[name].sha256 == other.files[name].sha256


def test_a_llama_pair_becomes_a_bundle(compiled: tuple[Path, Result]) -> None:
    path, result = compiled
    assert result.exit_code == 0, result.output
    bundle = Bundle.open(path)
    bundle.verify()
    target, draft, baseline = (bundle.manifest.models[name] for name in ("target", "draft", "baseline"))
    assert (target.vocab_size, draft.vocab_size, bundle.manifest.tokenizer.vocab_size) == (128, 120, 120)
    assert (target.format, draft.format, baseline.format) == ("mxfp6_e2m3", "fp16_tiles", "fp16_tiles")
    assert (target.specializations, draft.specializations) == ((1, 5, 16), (1, 2, 16))
    assert target.context_length == draft.context_length == 96  # the shorter of both
    assert (bundle.manifest.tokenizer.bos_token_id, bundle.manifest.tokenizer.eos_token_ids) == (1, (2,))
    assert bundle.manifest.recipe["target"]["checkpoint"] == "./target"
    assert {"mxspec", "torch", "transformers", "onnx", "onnxruntime", "python"} <= bundle.manifest.versions.keys()
    assert [entry.name for entry in path.parent.iterdir()] == ["llama.bundle"]


def test_json_is_one_object(compiled: tuple[Path, Result]) -> None:
    path, result = compiled
    report = json.loads(result.stdout)
    assert report["bundle"] == str(path)
    groups = {group["name"]: group for group in report["models"]["target"]["groups"]}
    assert groups["mlp.down_proj"]["format"] == "mxfp6_e2m3"
    assert groups["mlp.down_proj"]["tensors"] == 2
    assert groups["mlp.down_proj"]["bytes"] == 2 * 4 * 3 * 400  # layers × row tiles of 64 rows × blocks of 96 × tile
    assert 0.02 < groups["mlp.down_proj"]["worst_error"] < 0.08
    assert groups["lm_head"]["format"] == "mxfp6_e2m3"
    assert groups["embed_tokens"]["format"] == "fp16"
    assert report["models"]["draft"]["groups"][0]["worst_error"] == 0  # the checkpoint is fp16
    names = ("target", "draft", "baseline")
    stages = ["referee target", "referee draft"]
    stages += [f"{work} {name}" for work in ("export", "pack", "check") for name in names]
    assert list(report["stage_seconds"]) == stages
    assert 0 < sum(report["stage_seconds"].values()) <= report["seconds"]


@pytest.mark.parametrize("name", ["draft", "baseline"])
def test_fp16_models_give_the_logits_of_transformers(
    compiled: tuple[Path, Result], recipes: Callable[[str], Path], name: str
) -> None:
    bundle = Bundle.open(compiled[0])
    entry = bundle.manifest.models["draft" if name == "draft" else "baseline"]
    checkpoint = recipes("llama").parent / ("draft" if name == "draft" else "target")
    tokens = list(range(3, 15))
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        expected = model(torch.tensor([tokens])).logits[0]
    session = Session(bundle.path, entry, entry.vocab_size, slots=1)
    logits = session.run([Part(0, 0, tokens, len(tokens))])
    np.testing.assert_allclose(logits, expected.numpy(), atol=2e-3 * float(expected.abs().max()))


def test_a_context_that_one_model_does_not_know_is_refused_before_any_work(
    recipes: Callable[[str], Path], tmp_path: Path
) -> None:
    result = speccompile(recipes("llama"), "-o", tmp_path / "x.bundle", "--context-length", 100)
    said = "error: context_length: got 100, but the target knows 96 positions; expected at most 96; for more, its"
    assert failed(result).startswith(said)
    assert "export" not in result.stderr


def test_a_gpt2_pair_with_options(recipes: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "gpt2.bundle"
    options = ["--target-format", "mxfp6_e3m2", "--draft-format", "mxfp6_e2m3", "--k-max", 2, "--context-length", 8]
    result = speccompile(recipes("gpt2"), "-o", path, *options, "--keep-fp16", "lm_head.*", "--keep-fp16", "*.0.mlp.*")
    assert result.exit_code == 0, result.output
    assert "packed matrices" in result.stderr  # standard output is piped here
    manifest = Bundle.open(path).manifest
    target = manifest.models["target"]
    formats = {tensor.name: tensor.format for tensor in target.tensors}
    assert formats["transformer.h.0.mlp.c_fc.weight"] == "fp16_tiles"
    assert formats["transformer.h.1.mlp.c_fc.weight"] == "mxfp6_e3m2"
    assert formats["lm_head.weight"] == "fp16_tiles"  # tied: the pattern names one of its two names
    assert manifest.models["draft"].format == "mxfp6_e2m3"
    assert (manifest.k_max, target.context_length, target.specializations) == (2, 8, (1, 3))
    assert manifest.recipe["target"]["keep_fp16"] == ["lm_head.*", "*.0.mlp.*"]
    assert "baseline" not in manifest.models


def test_formats_of_single_matrices(recipes: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "gpt2.bundle"
    options = ["--target-format", "mxfp6_e2m3", "--activations", "int8", "--draft-format", "mxfp4_e2m1"]
    options += ["--matrix-format", "lm_head.*", "mxint8", "--matrix-format", "*.0.mlp.*", "mxfp6_e3m2"]
    options += ["--matrix-format", "*.mlp.c_fc.*", "mxfp4_e2m1", "--keep-fp16", "*.1.mlp.c_proj.*"]
    result = done(recipes("gpt2"), "-o", path, *options)
    assert "mxfp6_e2m3 with int8 activations" in result.stderr
    manifest = Bundle.open(path).manifest
    target, draft = manifest.models["target"], manifest.models["draft"]
    assert (target.format, target.activations, draft.format, draft.activations) == (
        "mxfp6_e2m3", "int8", "mxfp4_e2m1", "int16",
    )  # fmt: skip
    formats = {tensor.name.removeprefix("transformer."): tensor.format for tensor in target.tensors}
    wanted = {
        "h.0.attn.c_attn.weight": "mxfp6_e2m3",
        "h.0.mlp.c_fc.weight": "mxfp6_e3m2",  # the first pattern that matches
        "h.0.mlp.c_proj.weight": "mxfp6_e3m2",
        "h.1.mlp.c_fc.weight": "mxfp4_e2m1",
        "h.1.mlp.c_proj.weight": "fp16_tiles",
        "lm_head.weight": "mxint8",
    }
    assert {name: formats[name] for name in wanted} == wanted
    graph = onnx.load(path / "target.onnx", load_external_data=False).graph
    asked = {
        node.input[1].removeprefix("transformer."): {a.name: a.s.decode() for a in node.attribute if a.name != "N"}
        for node in graph.node
        if node.op_type == "PackedMatMul"
    }
    for name, kind in wanted.items():
        takes = kind in ("mxfp6_e2m3", "mxfp4_e2m1", "mxint8")
        assert asked[name]["format"] == kind
        assert asked[name].get("activations") == ("int8" if takes else None)
    assert manifest.recipe["target"]["formats"][0] == ["lm_head.*", "mxint8"]


def test_inspect(compiled: tuple[Path, Result]) -> None:
    path, _ = compiled
    result = done("inspect", path, "--verify")
    assert "gate_proj+up_proj" in result.stdout
    assert "all 7 files are what speccompile wrote" in result.stdout
    report = json.loads(speccompile("inspect", path, "--verify", "--json").stdout)
    assert report["changed_files"] == []
    assert report["models"].keys() == {"target", "draft", "baseline"}


def test_verify_finds_a_flipped_bit(compiled: tuple[Path, Result], tmp_path: Path) -> None:
    path = tmp_path / "copy.bundle"
    shutil.copytree(compiled[0], path)
    content = bytearray((path / "target.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "target.safetensors").write_bytes(content)
    assert speccompile("inspect", path).exit_code == 0
    result = speccompile("inspect", path, "--verify", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["changed_files"] == ["target.safetensors"]
    assert "SHA-256 differs for target.safetensors" in result.stderr


@pytest.mark.parametrize("args", [[], ["emit"]])
def test_bare_groups_show_their_help(args: list[str]) -> None:
    result = speccompile(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Commands:" in result.stdout
    assert "..." not in result.stdout.partition("Commands:")[2]


def test_the_version_is_shown() -> None:
    assert ", version " in speccompile("--version").stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["compile"], "Missing argument 'RECIPE|CHECKPOINT'"),
        (["demo", "--verify"], "--verify"),
        (["inspect"], "Missing argument 'BUNDLE'"),
        (["inspect", "x", "--force"], "--force"),
        (["demo", "--emit", "onnx"], "'onnx' is not 'standard'"),
        (["emit", "onnx", "x"], "onnx"),
        (["demo", "--target-format", "mxfp4"], "--target-format"),
        (["demo", "--k-max", "0"], "--k-max"),
        (["demo", "--kmax", "3"], "--kmax"),
        (["deno"], "did you mean 'demo'"),
        (["deno"], "no recipe and no checkpoint 'deno'"),
        (["llama2-chat"], "its weights were never published: train such a draft"),
        (["demo", "--draft", "nowhere"], "no directory"),
        (["explain"], "expected RECIPE|CHECKPOINT, or --all"),
        (["explain", "demo", "--all"], "expected RECIPE|CHECKPOINT, or --all"),
        (["list", "demo"], "demo"),
        (["demo", "--budget", "5.2bpw", "--max-ratio", "1.01"], "`budget` and `max_ratio`, expected one of them"),
        (["inspect", "nowhere"], "no such directory"),
        (["emit", "standard", "nowhere"], "no such directory"),
        (["emit", "standard", "nowhere", "--shapes", "0"], "--shapes"),
    ],
)
def test_usage_errors(args: list[str], says: str) -> None:
    line = failed(speccompile(*args))
    assert says in line
    assert "{" not in line


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a bundle is not to appear; checked afterwards by `nothing_left`."""
    return tmp_path / "place" / "x.bundle"


def nothing_left(place: Path) -> bool:
    return not place.parent.exists() or not list(place.parent.iterdir())


def test_an_existing_bundle_is_refused_and_replaced_with_force_only_after_success(
    compiled: tuple[Path, Result], recipes: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(compiled[0], place)
    before = (place / "manifest.json").read_bytes()
    assert "--force" in failed(speccompile(recipes("gpt2"), "-o", place))

    def fail(*args: object) -> None:
        raise CheckFailed("row 3 differs")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "plan_model", fail)
        assert "row 3 differs" in failed(speccompile(recipes("gpt2"), "-o", place, "--force"), exit_code=2)
    assert (place / "manifest.json").read_bytes() == before
    assert list(place.parent.iterdir()) == [place]

    result = speccompile(recipes("gpt2"), "-o", place, "--force")
    assert result.exit_code == 0, result.output
    assert Bundle.open(place).manifest.name == "gpt2"
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize("how", ["ctrl-c", "termination"])
def test_an_interrupt_leaves_nothing(
    recipes: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def interrupted(plan: object, folder: Path, *rest: object) -> None:
        assert not nothing_left(place)
        (folder / "target.safetensors").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGINT if how == "ctrl-c" else signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    fake_plans(monkeypatch)
    monkeypatch.setattr(pipeline, "write_model", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        result = speccompile(recipes("llama"), "-o", place)
    finally:
        signal.signal(signal.SIGINT, before)
    assert failed(result, exit_code=130) == "error: interrupted"
    assert nothing_left(place)
    assert signal.getsignal(signal.SIGTERM) is handler


def fake_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exported; nobody looks at windows."""
    monkeypatch.setattr(pipeline, "plan_model", fake_plan)
    monkeypatch.setattr(pipeline, "check_windows", lambda *_: None)


def fake_plan(model: Model) -> Any:
    return SimpleNamespace(
        name=model.name,
        exported=SimpleNamespace(weights=(), windows=()),
        layout=SimpleNamespace(file_bytes=1 << 20),
        read_bytes=1,
    )


def test_a_full_disk(recipes: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_plans(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert "the disk has 0.00 GB free" in failed(speccompile(recipes("llama"), "-o", place))
    assert nothing_left(place)


LOGITS = {"target": 128, "draft": 119}


def test_fewer_logits_than_ids(recipes: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "usable_ids", lambda name, *given: usable_ids(name, given[0], LOGITS[name]))
    assert "the draft has 119 logits for a tokenizer of 120 ids" in failed(speccompile(recipes("llama"), "-o", place))
    assert nothing_left(place)


def test_a_broken_weight_is_named(tmp_path: Path, place: Path) -> None:
    recipe = write_pair(tmp_path, "llama")
    weights = tmp_path / "target" / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.layers.1.mlp.up_proj.weight"][70, 3] = float("nan")
    save_file(tensors, weights)
    line = failed(speccompile(recipe, "-o", place))
    assert "tensor 'model.layers.1.mlp.up_proj.weight' of model.safetensors holds NaN" in line
    assert nothing_left(place)


def test_a_missing_tensor_is_refused_before_anything_is_computed(tmp_path: Path, place: Path) -> None:
    recipe = write_pair(tmp_path, "llama")
    weights = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights)
    result = speccompile(recipe, "-o", place)
    assert "no tensor for model.norm.weight" in failed(result)
    assert "referee" not in result.stderr
    assert nothing_left(place)


@pytest.mark.parametrize("outcome", [None, RuntimeError("whatever a half-written file leads to")])
def test_a_checkpoint_that_changes_meanwhile(
    recipes: Callable[[str], Path], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    recipe = shutil.copytree(recipes("llama").parent, tmp_path / "pair") / "recipe.toml"

    def change(*_: object, **__: object) -> None:
        (recipe.parent / "target" / "config.json").unlink()
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(pipeline, "write_bundle", change)
    line = failed(speccompile(recipe, "-o", place))
    assert f"{recipe.parent / 'target' / 'config.json'}: was removed while it was compiled" in line
    assert nothing_left(place)


def test_a_draft_larger_than_its_target_is_a_warning(
    recipes: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise CheckFailed("stopped here")

    monkeypatch.setattr(pipeline, "judge_models", stop)
    pair = recipes("llama").parent
    result = speccompile(pair / "draft", "--draft", pair / "target", "-o", place)
    assert "stopped here" in failed(result, exit_code=2)
    assert "is larger than the target" in result.stderr
    assert "is larger than the target" not in speccompile(pair / "recipe.toml", "-o", place).stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda folder: write_tokenizer(folder / "draft", swap=True),
            "2 tokens differ, such as 'w3', id 3 in the target",
        ),
        (lambda folder: (folder / "draft" / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "target" / "config.json").unlink(), "no config.json"),
        (lambda folder: shutil.rmtree(folder / "draft"), "no directory"),
        (lambda folder: (folder / "recipe.toml").write_text("nam = 3"), "unknown key 'nam' (did you mean 'name'?)"),
    ],
)
def test_bad_pairs(tmp_path: Path, place: Path, damage: Callable[[Path], object], says: str) -> None:
    recipe = write_pair(tmp_path, "llama")
    damage(tmp_path)
    assert says in failed(speccompile(recipe, "-o", place))
    assert nothing_left(place)


def test_a_pattern_that_names_nothing(recipes: Callable[[str], Path], place: Path) -> None:
    for option, value in (("--keep-fp16", ()), ("--matrix-format", ("mxint8",))):
        line = failed(speccompile(recipes("llama"), "-o", place, option, "lm_haed.weight", *value))
        assert "no matrix is named 'lm_haed.weight' (did you mean 'lm_head.weight'?)" in line
    assert nothing_left(place)


def test_folders_without_a_recipe(
    recipes: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair and a target alone; the bundle has the target's name, and all that nobody asked for is the default."""
    asked: list[tuple[Recipe, Path]] = []

    def compile_bundle(recipe: Recipe, output: Path, **_: object) -> None:
        asked.append((recipe, output))
        raise CheckFailed("stopped here")

    monkeypatch.setattr(pipeline, "compile_bundle", compile_bundle)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Tiny-1k").mkdir()
    draft = recipes("llama").parent / "draft"
    for arguments in (["Tiny-1k", "--draft", draft, "--k-max", 2], ["./Tiny-1k", "-o", "alone.bundle"]):
        assert "stopped here" in failed(speccompile(*arguments), exit_code=2)
    (pair, output), (alone, other) = asked
    assert (pair.name, pair.k_max, output, other) == ("Tiny-1k", 2, Path("Tiny-1k.bundle"), Path("alone.bundle"))
    assert pair.local_folder(pair.target.checkpoint) == tmp_path / "Tiny-1k"
    assert pair.draft is not None
    assert pair.local_folder(pair.draft.checkpoint) == draft
    assert alone.draft is None


def test_a_pair_and_an_adapter_of_the_hub_are_recorded_by_their_commits(
    recipes: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commits = {"org/big": "a" * 40, "org/small": "b" * 40}
    for name, role in (("org/big", "target"), ("org/small", "draft")):
        shutil.copytree(recipes("llama").parent / role, tmp_path / "snapshots" / commits[name])
    commits["org/adapter"] = "c" * 40
    (tmp_path / "snapshots" / commits["org/adapter"]).mkdir()
    write_adapter(tmp_path / "snapshots" / commits["org/adapter"], {"model.layers.1.mlp.up_proj": (96, 64, 4)})
    monkeypatch.setattr(fetch, "snapshot_download", lambda name, **_: str(tmp_path / "snapshots" / commits[name]))
    result = speccompile("org/big", "--draft", "org/small", "--adapter", "org/adapter", "-o", place)
    assert result.exit_code == 0, result.output
    target, draft = (Bundle.open(place).manifest.recipe[role] for role in ("target", "draft"))
    recorded = {role["checkpoint"]: role["revision"] for role in (target, draft)}
    assert recorded | {target["adapter"]: target["adapter_revision"]} == commits


def test_hub_ids(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_pair(tmp_path, "llama")
    recipe.write_text(recipe.read_text().replace('"./draft"', '"org/small"\nrevision = "v1"'))
    asked: list[tuple[str, object]] = []

    def download(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repository, revision))
        assert "config.json" in allow_patterns
        raise OSError("no network\nand a second line")

    monkeypatch.setattr(fetch, "snapshot_download", download)
    line = failed(speccompile(recipe, "-o", place))
    assert line == "error: org/small: cannot be fetched from the hub: no network"
    assert asked == [("org/small", "v1")]
    assert nothing_left(place)


def test_compiling_may_emit(recipes: Callable[[str], Path], tmp_path: Path) -> None:
    """Beside the bundle; a place that is taken is an error before anything is compiled."""
    options = ("-o", tmp_path / "x.bundle", "--emit", "standard")
    (tmp_path / "x.standard").mkdir()
    assert "exists" in failed(speccompile(recipes("llama"), *options))
    (tmp_path / "x.standard").rmdir()
    assert [path.name for path in tmp_path.iterdir()] == []
    result = done(recipes("llama"), *options, "--json")
    assert {"standard target"} <= json.loads(result.stdout)["stage_seconds"].keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bundle", "x.standard"]
