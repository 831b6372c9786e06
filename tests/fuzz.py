"""Damaged and hostile files, thrown at every reader: each gives what it read or one line, soon, and nothing else.

    python tests/fuzz.py                            # 100,000 files for each reader, in minutes
    python tests/fuzz.py manifest --count 1000000 --seed 3

A file is a good one with up to four things changed: values of its JSON, or bytes of its text. What a reader does not
take well is written to --keep, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckpointError, MxspecError
from mxspec.formats.manifest import MANIFEST, TOKENIZER
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout, read_header

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script
from tests.formats.conftest import write_bundle

SLOW = 1.0  # seconds of this process that no reader may take
DEMO = Path(__file__).parents[1] / "recipes" / "demo"

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 63, 64, 65, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.0, -0.0, 0.5, 1.5, 4096.0, 1e-320, 1e308, "", "0", "64", "x", "\0", "../x", "a/b", "é\ud800",
    "x" * 5000, [], [0], [None], [[]], [1, "2"], list(range(300)), {}, {"": 0}, {"x": {}}, {"rope_type": "yarn"},
    [{}] * 40,
)  # fmt: skip
ODD_TEXT = (b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xff", b"\0", b",",
            b'"', b"\\ud800", b"\\u0000", b"}{", b"null", b"\xef\xbb\xbf", b"1" + b"0" * 400,
            b'"x":0,' * 30)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A file, what reads it, and the JSON of good ones. `data_bytes`: as a safetensors file, so many bytes after it.

    With `wrap` good ones are bytes, and what that makes of them is the file. A reader of `cost` 100 gets one file of a
    hundred, and has a hundred times as long for it.
    """

    path: Path
    read: Callable[[], object]
    good: tuple[bytes, ...]
    data_bytes: int | None = None
    wrap: Callable[[bytes], bytes] | None = None
    cost: int = 1

    def whole(self, text: bytes) -> bytes:
        """The file around a text that was not changed."""
        if self.wrap is not None:
            return self.wrap(text)
        return text if self.data_bytes is None else len(text).to_bytes(8, "little") + text + bytes(self.data_bytes)


def change_value(tree: Any, chance: random.Random) -> None:
    """Change one thing somewhere in a tree of JSON."""
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.8:
            node = node[key]
            continue
        break
    match chance.randrange(7):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[chance.choice((f"{key}x", f"_{key}", "", "to_dict", "é", "x" * 2000))] = node.pop(key)
        case 2 if isinstance(node, dict):
            node[chance.choice(("auto_map", "quantization_config", "num_labels", "text_config", f"{key}s"))] = odd(
                chance
            )
        case 3:
            other = chance.choice(list(tree.values()) if isinstance(tree, dict) else tree) if tree else None
            node[key] = json.loads(json.dumps(other))
        case 4 if isinstance(node[key], int) and not isinstance(node[key], bool):
            node[key] += chance.choice((-1, 1, 64, -64))
        case _:
            node[key] = odd(chance)


def odd(chance: random.Random) -> Any:
    """An odd value, its own at each call: what is in the table stays as it is."""
    return json.loads(json.dumps(chance.choice(ODD_VALUES)))


def change_text(text: bytearray, chance: random.Random) -> None:
    """Change some bytes in one place."""
    at = chance.randrange(len(text) + 1)
    end = min(len(text), at + int(chance.expovariate(0.1)))
    match chance.randrange(5):
        case 0:
            del text[at:end]
        case 1:
            text[at:at] = text[at:end]
        case 2:
            text[at:at] = chance.choice(ODD_TEXT)
        case 3 if at < len(text):
            text[at] ^= 1 << chance.randrange(8)
        case _:
            del text[at:]


def make_file(target: Target, chance: random.Random) -> bytes:
    """The bytes of a changed file."""
    if target.wrap is not None:
        return wrap_changed(target.wrap, chance.choice(target.good), chance)
    tree = json.loads(chance.choice(target.good))
    for _ in range(chance.randrange(4)):
        change_value(tree, chance)
    text = bytearray(json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass"))
    if chance.random() < 0.4:
        change_text(text, chance)
    if target.data_bytes is None:
        return bytes(text)
    length = len(text) if chance.random() < 0.9 else chance.choice((0, 1, len(text) + 1, 2**63, 2**64 - 1))
    data = bytes(max(0, target.data_bytes + chance.choice((0, 0, 0, 0, 1, -1))))
    return length.to_bytes(8, "little") + bytes(text) + data


def wrap_changed(wrap: Callable[[bytes], bytes], good: bytes, chance: random.Random) -> bytes:
    """A file around changed bytes, and at times changed itself."""
    inner = bytearray(good)
    for _ in range(chance.randrange(4)):
        change_text(inner, chance)
    file = bytearray(wrap(bytes(inner)))
    if chance.random() < 0.3:
        change_text(file, chance)
    return bytes(file)


def judge(target: Target) -> tuple[str, str]:
    """How a reader took a file: taken, refused, or what was wrong with it."""
    began = time.process_time()
    try:
        target.read()
        how, said = "taken", ""
    except MxspecError as error:
        said = str(error)
        how = "refused" if said and "\n" not in said else "not one line"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of the tokenizers is no Exception
        how, said = type(error).__name__, str(error)
    seconds = time.process_time() - began
    return (how, said) if seconds <= SLOW * target.cost else ("slow", f"{seconds:.1f} s: {said}")


def fuzz(name: str, count: int, seed: int, place: Path, keep: Path | None = None) -> Counter[str]:
    """How often each thing happened; files that were not taken well are kept in a folder."""
    target, counts = TARGETS[name](place), Counter[str]()
    chance = random.Random(f"{name} {seed}")
    for number in range(-(-count // target.cost)):
        content = make_file(target, chance)
        target.path.write_bytes(content)
        how, said = judge(target)
        counts[how] += 1
        if how not in ("taken", "refused"):
            print(f"{name}: {how}: {said[:300]}", file=sys.stderr)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}-{seed}-{number}").write_bytes(content)
    return counts


def config(place: Path) -> Target:
    """config.json, as far as transformers' configuration."""
    from transformers.utils import logging

    from mxspec.compile.checkpoint.settings.config import load_config

    logging.set_verbosity(logging.CRITICAL)
    llama = json.loads((DEMO / "target" / "config.json").read_bytes())
    rope = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "activation_function": "gelu_new"},
        {"model_type": "gemma2", "query_pre_attn_scalar": 24, "layer_types": ["full_attention"] * 3},
        {"model_type": "phi3", "rope_parameters": rope | {"rope_theta": 1e4}, "pad_token_id": 0},
        {"model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64, "do_layer_norm_before": True},
    )
    good = tuple(json.dumps(llama | kind).encode() for kind in kinds)
    return Target(place / "config.json", lambda: load_config(place), good)


def model(place: Path) -> Target:
    """config.json, as far as transformers' model without weights, which takes a hundred times as long."""
    from mxspec.compile.checkpoint.names import name_parameters
    from mxspec.compile.checkpoint.settings.config import load_config

    return replace(config(place), read=lambda: name_parameters(load_config(place)), cost=100)


def header(place: Path) -> Target:
    """The header of a safetensors file."""
    path = place / "x.safetensors"
    layout = plan_layout(
        [("embedding", "F16", (40, 33)), ("norm", "F32", (33,)), ("up", "U8", (2, 800)), ("b", "BF16", ())]
    )
    data_bytes = layout.file_bytes - len(layout.header)
    return Target(path, lambda: read_header(path, CheckpointError), (layout.header[8:],), data_bytes)  # fmt: skip


def index(place: Path) -> Target:
    """The index of a sharded checkpoint, whose shards are there."""
    from mxspec.compile.checkpoint.checkpoint import Checkpoint
    from mxspec.compile.checkpoint.tensors.weight_files import SAFETENSORS

    shutil.copy(DEMO / "target" / "config.json", place)
    weight_map = {}
    for number in range(4):
        shard = f"model-{number}-of-4.safetensors"
        names = [f"model.layers.{number}.{part}.weight" for part in "ab"]
        with SafetensorsWriter(place / shard, plan_layout([(name, "F16", (4, 8)) for name in names])) as writer:
            for name in names:
                writer.begin(name)
                writer.append(bytes(64))
        weight_map |= dict.fromkeys(names, shard)
    good = json.dumps({"metadata": {"total_size": 512}, "weight_map": weight_map}).encode()
    return Target(place / SAFETENSORS.index, lambda: Checkpoint(place).close(), (good,))


def pickled(place: Path) -> Target:
    """The list of tensors in a file of torch.save."""
    import torch

    from mxspec.compile.checkpoint.tensors.pickled_shard import open_pickle

    path, shared = place / "pytorch_model.bin", torch.ones(4, 8, dtype=torch.bfloat16)
    torch.save({"a.weight": shared, "b.weight": shared[1:3], "norm": torch.nn.Parameter(torch.ones(3))}, path)
    with zipfile.ZipFile(path) as archive:
        records = {
            name: archive.read(name) for name in archive.namelist() if "/." not in name
        }  # says how it is laid out
    listing = next(name for name in records if name.endswith("/data.pkl"))

    def wrap(text: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in (records | {listing: text}).items():
                archive.writestr(name, content)
        return file.getvalue()

    def read() -> None:
        with ExitStack() as files:
            open_pickle(path, files)

    return Target(path, read, (records[listing],), wrap=wrap)


def tokenizer(place: Path) -> Target:
    """tokenizer.json, as the compiler and as the runtime read it."""
    from mxspec.compile.planning.pair import TokenIds
    from mxspec.runtime.text.tokenizer import load_tokenizer

    found = json.loads((DEMO / "target" / "tokenizer.json").read_bytes())
    vocab = dict(list(found["model"]["vocab"].items())[:280])
    found["model"] |= {"vocab": vocab, "merges": [pair for pair in found["model"]["merges"] if "".join(pair) in vocab]}
    pieces = [["<unk>", 0.0], *([token, -float(number)] for number, token in enumerate(list(vocab)[:60]))]
    others = (
        {"type": "Unigram", "unk_id": 0, "vocab": pieces},
        {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}},
    )
    good = tuple(json.dumps(found | {"model": model}).encode() for model in (found["model"], *others))
    path = place / TOKENIZER

    def read() -> None:
        with suppress(MxspecError):
            TokenIds.read(path)
        load_tokenizer(path)

    return Target(path, read, good)


def generation(place: Path) -> Target:
    """generation_config.json."""
    from mxspec.compile.checkpoint.settings.generation_config import (
        not_applied_note,
        read_rules,
        read_sampling,
        read_special_tokens,
    )

    values = {
        "bos_token_id": 0,
        "eos_token_id": [0, 5],
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 50,
        "top_p": 0.9,
        "suppress_tokens": [3, 7],
        "bad_words_ids": [[1], [2, 4]],
        "forced_eos_token_id": 5,
        "num_beams": 4,
        "early_stopping": True,
    }

    def read() -> None:
        read_special_tokens(place, "0" * 64, 40)
        read_sampling(place)
        not_applied_note(read_rules(place, 40))

    return Target(place / "generation_config.json", read, (json.dumps(values).encode(),))


def manifest(place: Path) -> Target:
    """manifest.json of a bundle whose other files are as it says."""
    bundle = write_bundle(place / "x.bundle")
    path = bundle / MANIFEST
    return Target(path, lambda: Bundle.open(bundle), (path.read_bytes(),))


def gguf(place: Path) -> Target:
    """A whole GGUF file: its container, its keys, and what describes the checkpoint that it becomes."""
    from contextlib import ExitStack

    import gguf as package
    import numpy as np

    from mxspec.compile.checkpoint.gguf.open_gguf import open_gguf

    path = place / "x.gguf"
    writer = package.GGUFWriter(path, "llama")
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}
    for name, value in {**sizes, "attention.head_count": 2, "attention.head_count_kv": 1}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "a", "b", "ab"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    rounded = package.quants.quantize(np.ones((32, 32), np.float32), package.GGMLQuantizationType.Q4_0)
    writer.add_tensor("blk.0.attn_q.weight", rounded, raw_dtype=package.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def read() -> None:
        with ExitStack() as files:
            for tensor in open_gguf(path, files).tensors.values():
                tensor.read_rows(0, tensor.shape[0])

    return Target(path, read, (path.read_bytes(),), wrap=lambda data: data)


READERS = (config, model, header, index, pickled, tokenizer, generation, manifest, gguf)
TARGETS = {maker.__name__: maker for maker in READERS}


def main() -> int:
    """Run the command; 1 where a reader did not take a file well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    options = parser.parse_args()
    os.environ["RUST_BACKTRACE"] = "0"  # the tokenizers print a line at each panic that we catch; it is enough
    bad = 0
    for name in options.readers:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            counts = fuzz(name, options.count, options.seed, Path(place), options.keep)
        print(f"{name}: {dict(counts)} in {time.perf_counter() - began:.1f} s", flush=True)
        bad += sum(counts.values()) - counts["taken"] - counts["refused"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
