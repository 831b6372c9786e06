"""Bundles, compiled once a run: a tiny random target with two drafts, and the demo pair; and a browser."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from mxspec.formats.bundle import Bundle
from tests.once import compiled_once, shared_folder
from tests.watched import headless_browser

# Each worker has one core: more torch threads would only wait for each other. Subprocesses of tests inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The collector otherwise looks through torch's many objects again and again: 12 % of the time of tests that trace.
gc.set_threshold(200_000, 20, 20)

# Shells start jobs in the background with SIGINT ignored, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# torch dumps every graph into this log as soon as somebody listens, and pytest's log capture does: half a test's time.
logging.getLogger("torch.__trace").propagate = False

CONTEXT = 96
PREFILL_CHUNK = 16
WEIGHT_SCALE = 2.5  # greedy texts that do not fall into a loop at once
K_MAX = 8
VOCAB = 259  # 256 bytes and three special tokens
BOS, EOS, END = 256, 257, 258
TESTS = Path(__file__).parent
DEMO = TESTS.parent / "recipes" / "demo"

# Files that took 20 seconds or more, about in that order, those that compute between those that mostly wait for a
# server, a browser or Ray; two that make the same bundle do not stand side by side.
LONGEST = (
    "serve/test_ray.py",  # waits
    "real/test_smollm2.py",
    "compile/planning/test_export_logits.py",
    "serve/test_life.py",  # waits
    "runtime/verifiers/test_distribution.py",
    "compile/commands/test_speccompile.py",
    "serve/test_page.py",  # waits
    "compile/train/test_train_head.py",
    "compile/test_draft_vocabulary.py",
    "serve/test_openai_client.py",  # waits
    "compile/heads/test_pair.py",
    "runtime/verifiers/test_whole_texts.py",
    "compile/weights/budget/test_sensitivity.py",
    "compile/heads/test_mtp_pair.py",
    "compile/test_windows.py",
    "test_fuzz.py",  # waits
    "compile/commands/test_explain.py",  # the demo pair
    "evaluate/accuracy/test_command.py",
    "serve/test_attacks.py",  # waits
    "docs/test_commands.py",  # the demo pair with a baseline, the pair with encoders
    "compile/trace/test_hidden_states.py",
    "compile/test_killed.py",
    "serve/test_other_shapes.py",  # waits
    "compile/check/test_referee.py",
    "compile/test_mxint8_caches.py",
    "serve/test_refusals.py",  # waits
    "runtime/ops/test_every_isa.py",
    "evaluate/lossless/test_broken_engines.py",
    "runtime/commands/test_batch.py",  # waits
    "bench/shapes/test_mixtures.py",
    "compile/check/test_own_weights.py",
    "compile/test_encoder_decoders.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files go first: the worker that takes one last would work alone at the end.

    The other files of the server's tests, which mostly wait, are spread among all the others.
    """
    rank: dict[Path, float] = {TESTS / name: place for place, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in rank), "LONGEST names a file that is not there"
    rest = [path for path in dict.fromkeys(item.path for item in items) if path not in rank]
    of_server = [path for path in rest if path.parent == TESTS / "serve"]
    for group in (of_server, [path for path in rest if path not in of_server]):
        rank |= {path: len(LONGEST) + place / len(group) for place, path in enumerate(group)}
    items.sort(key=lambda item: rank[item.path])


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache folder is left alone, by the processes that tests start, too."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


def make_byte_tokenizer() -> Tokenizer:
    """A tokenizer without merges: ids 0 to 255 are bytes, so any text and half of any character can come up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}  # GPT-2's
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>", "<end>"])
    return tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return make_byte_tokenizer()


def save_checkpoint(
    folder: Path, *, seed: int, logits: int, noise: float = 0.0, layers: int = 2, heads: int = 4
) -> Path:
    """A random Llama with `logits` ≥ VOCAB logits, the ones beyond VOCAB far too likely: they must be masked."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=logits,
        max_position_embeddings=CONTEXT,
        bos_token_id=BOS,
        eos_token_id=[EOS, END],
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Row by row, so that the same seed gives the same model with more logits too.
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + parameter.ndim))
            )
            if parameter.ndim == 1:
                parameter.mul_(0.2).add_(1)
            else:
                parameter.mul_(WEIGHT_SCALE * parameter.shape[-1] ** -0.5)
            parameter.add_(torch.randn_like(parameter), alpha=noise * parameter.std().item())
        model.lm_head.weight[VOCAB:] *= 30
        model.lm_head.weight[[BOS, EOS, END]] = 0  # logit 0: possible when sampling, never the largest
    folder.mkdir(parents=True)
    model.half().save_pretrained(folder)
    make_byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def save_t5(folder: Path, *, seed: int, noise: float = 0.0) -> Path:
    """A random T5 1.1 of VOCAB tokens, whose tokenizer ends every source with EOS; BOS is what decoders begin with."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    config = T5Config(
        vocab_size=VOCAB,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        pad_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        **sizes,
    )
    model = T5ForConditionalGeneration(config)
    chance, other = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance))
            if parameter.ndim == 1:
                parameter.mul_(0.2).add_(1)
            elif parameter.shape[-1] != sizes["num_heads"] and name != "shared.weight":
                wide = sizes["d_kv"] if ".q." in name else 1  # scores are not divided by the root of the head's size
                parameter.mul_(WEIGHT_SCALE * (parameter.shape[-1] * wide) ** -0.5)
            parameter.add_(torch.randn(parameter.shape, generator=other), alpha=noise * parameter.std().item())
        model.lm_head.weight[[BOS, EOS, END]] = 0  # logit 0: possible when sampling, never the largest
    folder.mkdir(parents=True)
    model.half().save_pretrained(folder)
    tokenizer = make_byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", EOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def compile_pair(
    folder: Path,
    target: Path,
    draft: Path,
    *,
    with_baseline: bool = False,
    tasks: Mapping[str, str] | None = None,
    **settings: Any,
) -> Path:
    """Compile two checkpoints with what speccompile is made of; the bundle's directory."""
    from rich.console import Console

    from mxspec.compile.pipeline import compile_bundle
    from mxspec.compile.progress import Stages
    from mxspec.recipes.recipe import Recipe

    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += [f"tasks.{key} = {json.dumps(value)}" for key, value in (tasks or {}).items()]
    recipe = folder / "pair.toml"
    recipe.write_text(
        "\n".join(
            ['name = "pair"', *lines, "[target]", f'checkpoint = "{target}"', "[draft]", f'checkpoint = "{draft}"', ""]
        )
    )
    output = folder / "pair.bundle"
    stages = Stages(Console(quiet=True))
    compile_bundle(Recipe.load(recipe), output, with_baseline=with_baseline, force=False, stages=stages)
    return output


def scramble_draft(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle whose draft has the same weights in random places: a draft that knows nothing."""
    shutil.copytree(bundle, folder)
    manifest = Bundle.open(folder).manifest
    weights = np.memmap(folder / manifest.models["draft"].weights, np.uint8, "r+")
    rng = np.random.default_rng(3)
    for tensor in manifest.models["draft"].tensors:
        if tensor.format in ("fp16", "fp16_tiles"):
            values = weights[tensor.offset : tensor.offset + tensor.bytes].view(np.uint16)
            values[:] = rng.permutation(values)
    weights.flush()
    return folder


@pytest.fixture(scope="session")
def each_model_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled in this process is traced and judged once a run; tests of the referee itself call it."""
    with compiled_once(tmp_path_factory):
        yield


@pytest.fixture(scope="session")
def tiny_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same random target with a draft that is often right ("near") and one that hardly ever is ("random")."""

    def fill(folder: Path) -> None:
        target = save_checkpoint(folder / "target", seed=5, logits=272)
        draft = save_checkpoint(folder / "draft", seed=5, logits=264, noise=0.1)
        text = folder / "text.txt"
        text.write_text("a text that repeats what it says, and says what it repeats; a text that says so. " * 20)
        texts = {"ngram": str(text), "suffix": str(text)}
        with compiled_once(tmp_path_factory):
            near = compile_pair(folder, target, draft, k_max=K_MAX, prefill_chunk=PREFILL_CHUNK, **texts)
        scramble_draft(near, folder / "random.bundle")

    folder = shared_folder(tmp_path_factory, "tiny", fill)
    return {"near": folder / "pair.bundle", "random": folder / "random.bundle"}


@pytest.fixture(scope="session")
def t5_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of tiny models with encoders, the draft often right, with an fp16 baseline; its checkpoints beside it.

    Sources have 48 tokens at most. Caches are float32, so that the baseline is transformers' model but for rounding.
    """

    def fill(folder: Path) -> None:
        target, draft = save_t5(folder / "target", seed=1), save_t5(folder / "draft", seed=1, noise=0.01)
        settings: dict[str, Any] = {"context_length": CONTEXT, "source_length": 48, "caches": "float32"}
        settings |= {"k_max": K_MAX, "prefill_chunk": PREFILL_CHUNK, "tasks": {"reverse": "reverse: "}}
        with compiled_once(tmp_path_factory):
            compile_pair(folder, target, draft, with_baseline=True, **settings)

    return shared_folder(tmp_path_factory, "t5", fill) / "pair.bundle"


@pytest.fixture(scope="session")
def demo_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo pair ("real"), and its target with a draft that knows nothing ("random")."""
    if not (DEMO / "target" / "model.safetensors").is_file():
        pytest.skip("recipes/demo/target: not there; python -m bench pair makes it")

    def fill(folder: Path) -> None:
        with compiled_once(tmp_path_factory):
            real = compile_pair(folder, DEMO / "target", DEMO / "draft", k_max=K_MAX)
        scramble_draft(real, folder / "random.bundle")

    folder = shared_folder(tmp_path_factory, "demo", fill)
    return {"real": folder / "pair.bundle", "random": folder / "random.bundle"}


@pytest.fixture(scope="session")
def demo_with_baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `speccompile demo --with-baseline` makes."""

    def fill(folder: Path) -> None:
        from rich.console import Console

        from mxspec.compile.pipeline import compile_bundle
        from mxspec.compile.progress import Stages
        from mxspec.recipes.recipe import Recipe

        recipe, stages = Recipe.load(DEMO.with_suffix(".toml")), Stages(Console(quiet=True))
        with compiled_once(tmp_path_factory):
            compile_bundle(recipe, folder / "demo.bundle", with_baseline=True, force=False, stages=stages)

    return shared_folder(tmp_path_factory, "demo-with-baseline", fill) / "demo.bundle"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, of one file of tests: its driver has an event loop that runs."""
    with headless_browser() as browser:
        yield browser
