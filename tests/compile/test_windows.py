"""Pairs whose layers have windows: rings give the texts that whole caches give, however a text came into its slot."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

import mxspec
from mxspec.compile.commands.report import print_report
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from tests.conftest import VOCAB, compile_pair, make_byte_tokenizer

CONTEXT, CHUNK, K_MAX = 640, 16, 6
KINDS = {
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8},
    "mistral": {"head_dim": 16, "sliding_window": 32},
    "gpt_oss": {"head_dim": 16, "sliding_window": 16, "num_local_experts": 8, "num_experts_per_tok": 2},
}
_MIXED = ["sliding_attention", "sliding_attention", "full_attention"]


def save_windowed(folder: Path, kind: str, noise: float = 0.0) -> Path:
    settings: dict[str, Any] = {
        **KINDS[kind], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "bos_token_id": 256,
        "eos_token_id": [257, 258], "pad_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    if kind != "mistral":
        settings["layer_types"] = _MIXED
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            own = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * own if parameter.ndim == 1 else 1.5 * own * parameter.shape[-1] ** -0.5)
            parameter.add_(torch.randn_like(parameter), alpha=noise * parameter.std().item())
        model.lm_head.weight[256:] = 0
    folder.mkdir(parents=True)
    model.half().save_pretrained(folder)
    make_byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=list(KINDS))
def bundle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, each_model_compiled_once: None
) -> Path:
    """A pair with float32 caches and an fp16 baseline, whose rings hold 128 tokens of 640."""
    folder = tmp_path_factory.mktemp(request.param)
    target, draft = save_windowed(folder / "target", request.param), save_windowed(folder / "draft", request.param, 0.1)
    settings = {"context_length": CONTEXT, "k_max": K_MAX, "prefill_chunk": CHUNK, "caches": "float32"}
    return compile_pair(folder, target, draft, with_baseline=True, **settings)


@contextmanager
def whole_caches() -> Iterator[None]:
    """In this block, sessions open with caches of the whole context in every layer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelEntry, "capacity_of", lambda entry, window: entry.context_length)
        yield


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(32, 127, length).tolist()


def write(engine: mxspec.Engine, prompts: list[list[int]], count: int = 60, **settings: Any) -> list[mxspec.Answer]:
    requests = [
        mxspec.Request(prompt=prompt, max_new_tokens=count, temperature=0, ignore_eos=True, **settings)
        for prompt in prompts
    ]
    return list(engine.run(requests))  # type: ignore[arg-type]


def ids(answers: list[mxspec.Answer]) -> list[list[int]]:
    return [list(answer.token_ids) for answer in answers]


def test_the_manifest_says_what_each_layer_sees(bundle: Path) -> None:
    entry = Bundle.open(bundle).manifest.models["target"]
    window = entry.windows[0]
    assert entry.windows == ((window,) * 3 if len(set(entry.windows)) == 1 else (window, window, 0))
    assert entry.capacity_of(window) == 128
    kept = sum(128 if each else CONTEXT for each in entry.windows)
    assert entry.cache_bytes(CONTEXT) == kept * 2 * 2 * 16 * 4
    session = Session.of(Bundle.open(bundle), "target", 2)
    assert sum(cache[0].nbytes for cache in session.caches.values()) == entry.cache_bytes(CONTEXT)
    assert session.slot_bytes(CONTEXT) < (0.5 if entry.windows[2] else 0.6) * 3 * CONTEXT * 2 * 2 * 16 * 4 + 64 * 4096


def test_logits_are_those_of_transformers_beyond_the_ring(bundle: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(bundle.parent / "target", dtype=torch.float32)
    text = prompt_of(400)
    with torch.no_grad():
        expected = model(torch.tensor([text])).logits[0].numpy()
    reader = Reader(Session.of(Bundle.open(bundle), "baseline", 1))
    got = np.concatenate(list(reader.score(text)))
    assert np.abs(got - expected).max() < 3e-5 * np.abs(expected).max()


def test_greedy_texts_are_the_same_with_whole_caches_and_however_they_are_drafted(bundle: Path) -> None:
    prompts = [prompt_of(length, length) for length in (5, 120, 200, 300)]
    with whole_caches(), mxspec.Engine(bundle, slots=3) as engine:
        wanted = ids(write(engine, prompts, k=0))
        beams = ids(write(engine, prompts[2:], beams=3, k=0))
    assert len({tuple(text[:9]) for text in wanted}) == len(prompts)
    for slots in (1, 3):
        with mxspec.Engine(bundle, slots=slots) as engine:
            for k in (0, 1, K_MAX, "auto"):
                assert ids(write(engine, prompts, k=k)) == wanted, k
    with mxspec.Engine(bundle, slots=8) as engine:
        assert ids(write(engine, prompts, k=3)) == wanted
        for k in (0, 3):
            assert ids(write(engine, prompts[2:], beams=3, k=k)) == beams, k


def test_a_beginning_is_reused_as_long_as_its_windows_are_there(bundle: Path) -> None:
    entry = Bundle.open(bundle).manifest.models["target"]
    window, base = max(entry.windows), prompt_of(300)
    just_there = 300 - 128 + window - 1  # the slot holds the entries from 172 on
    with whole_caches(), mxspec.Engine(bundle, slots=1) as engine:
        wanted = {
            n: ids(write(engine, [[*base[:n], *prompt_of(20, n)]], 12, k=0)) for n in (just_there, just_there - 1)
        }
    for length, reused in ((just_there, just_there), (just_there - 1, 0)):
        for k in (0, 3):
            with mxspec.Engine(bundle, slots=2) as engine:
                write(engine, [base], 1, k=0)  # which reads the 300 and no more
                (answer,) = write(engine, [[*base[:length], *prompt_of(20, length)]], 12, k=k)
                assert ids([answer]) == wanted[length]
                assert answer.statistics.reused_tokens == reused
                assert answer.statistics.reread_tokens == length - reused


def test_prompts_from_a_file_hold_a_window(bundle: Path, tmp_path: Path) -> None:
    prompt = prompt_of(300)
    with whole_caches(), mxspec.Engine(bundle, slots=1) as engine:
        wanted = ids(write(engine, [prompt, [*prompt, 65, 66]], k=0))
        engine.save(prompt, tmp_path / "whole")
    with mxspec.Engine(bundle, slots=1) as engine:
        engine.save(prompt, tmp_path / "ring")
        write(engine, [prompt_of(500, 1)], k=3)
    assert (tmp_path / "ring").stat().st_size == (tmp_path / "whole").stat().st_size  # whatever the ring holds
    windows = Bundle.open(bundle).manifest.models["target"].windows
    rows = sum(window or 300 for window in windows)
    assert (tmp_path / "ring").stat().st_size < rows * 2 * 2 * 16 * 4 * 2 + 20_000
    for file in ("ring", "whole"):
        for k in (0, 3):
            with mxspec.Engine(bundle, slots=2) as engine:
                assert engine.load(tmp_path / file) == 300
                answers = write(engine, [prompt, [*prompt, 65, 66]], k=k)
                assert ids(answers) == wanted
                assert [answer.statistics.reused_tokens for answer in answers] == [299, 300]


@pytest.mark.parametrize("windows", [(), (64, 64, 64), (8, 0, 0), (4, 4, 0), (0, 0, 8)])
def test_a_manifest_with_other_windows_is_refused(bundle: Path, windows: tuple[int, ...]) -> None:
    entry = Bundle.open(bundle).manifest.models["target"].model_copy(update={"windows": windows})
    with pytest.raises(BundleError, match=r"windows: got \d+ for layer \d, the graph's cache has capacity") as caught:
        Session(bundle, entry, VOCAB, slots=1)
    assert "\n" not in str(caught.value)


def test_a_bundle_from_before_windows_were_kept_has_whole_caches(bundle: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for file in bundle.iterdir():
        os.link(file, tmp_path / file.name)
    entry = Bundle.open(bundle).manifest.models["target"]
    model = onnx.load(bundle / "target.onnx", load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param.startswith("capacity"):
                dimension.dim_param = "capacity"
    (tmp_path / "older.onnx").write_bytes(model.SerializeToString())
    older = Session(tmp_path, entry.model_copy(update={"graph": "older.onnx", "windows": ()}), VOCAB, slots=1)
    assert {cache.shape[2] for cache in older.caches.values()} == {CONTEXT}
    text = prompt_of(300)
    expected = Session(bundle, entry, VOCAB, slots=1).run([Part(0, 0, text, 9)])
    assert older.run([Part(0, 0, text, 9)]).tobytes() == expected.tobytes()


def test_a_ring_that_is_too_small_is_refused_by_the_operator(bundle: Path) -> None:
    entry = Bundle.open(bundle).manifest.models["target"]
    window = max(entry.windows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelEntry, "capacity_of", lambda entry, window: 128 if window else entry.context_length)
        session = Session(bundle, entry, VOCAB, slots=1)
    session._most = CONTEXT  # calls are no longer cut
    message = f"expected at most the cache's capacity 128 together, or .* at least {window + 199}"
    with pytest.raises(BundleError, match=message):
        session.run([Part(0, 0, prompt_of(200), 1)])


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_give_the_bits_of_whole_caches(bundle: Path, seed: int) -> None:
    """Calls of any length, rollbacks, copies and kept rows, in company."""
    rng = random.Random(seed)
    opened = Bundle.open(bundle)
    rings = Session.of(opened, "target", 4)
    with whole_caches():
        whole = Session.of(opened, "target", 4)
    lengths, furthest, refused = [0] * 4, 0, 0
    for _ in range(120):
        slots = rng.sample(range(4), rng.randint(1, 3))
        parts = []
        for slot in slots:
            back = rng.choice([0, 0, 1, K_MAX, 70, 300])
            past = max(0, lengths[slot] - back)
            if not rings.goes_on(slot, past):
                refused += 1
                past = 0
            count = min(rng.choice([1, 1, 2, K_MAX + 1, CHUNK, 65, 90, 150]), CONTEXT - past)
            if count:
                parts.append(Part(slot, past, prompt_of(count, rng.randrange(1000)), rng.randint(0, count)))
                lengths[slot] = past + count
                furthest = max(furthest, lengths[slot])
        if any(part.rows for part in parts):
            assert rings.run(parts).tobytes() == whole.run(parts).tobytes()
        else:
            for slot in slots:
                lengths[slot] = min(lengths[slot], 0)
        source, other = rng.sample(range(4), 2)
        if rng.random() < 0.2 and lengths[source]:
            for session in (rings, whole):
                session.copy_prefix(source, other, lengths[source])
            lengths[other] = lengths[source]
        elif rng.random() < 0.2 and lengths[source] and rings.goes_on(source, lengths[source] - 1):
            kept = rings.rows(source, lengths[source])
            assert {name: rows.tobytes() for name, rows in kept.items()} == {
                name: rows.tobytes() for name, rows in whole.rows(source, lengths[source]).items()
            }
            rings.put_rows(other, kept, lengths[source])
            whole.copy_prefix(source, other, lengths[source])
            lengths[other] = lengths[source]
    assert furthest > 400
    assert refused


def test_a_beam_search_reads_again_what_windows_have_passed(bundle: Path) -> None:
    """Other texts take the lent slots back amid a search, whose beams then have to be read anew."""
    prompts = [prompt_of(150, seed) for seed in range(6)]
    with whole_caches(), mxspec.Engine(bundle, slots=2) as engine:
        wanted = ids(write(engine, prompts[:1], 200, beams=2, k=0))
    with mxspec.Engine(bundle, slots=5) as engine:
        search = engine.generate(prompts[0], max_new_tokens=200, temperature=0, ignore_eos=True, beams=2, k=3)
        others = ids(write(engine, prompts[1:], 40, k=2))
        assert [list(search.result().token_ids)] == wanted
    with whole_caches(), mxspec.Engine(bundle, slots=1) as engine:
        assert ids(write(engine, prompts[1:], 40, k=0)) == others


def test_what_inspect_says(bundle: Path) -> None:
    out = StringIO()
    print_report(bundle, Bundle.open(bundle).manifest, Console(file=out, width=200))
    entry = Bundle.open(bundle).manifest.models["target"]
    assert re.search(
        rf"{sum(map(bool, entry.windows))} of 3 layers have windows of {max(entry.windows)}: "
        rf"{entry.cache_bytes(CONTEXT):,} bytes for 640 tokens, \d\d\.\d% of what they take without windows",
        out.getvalue(),
    )
