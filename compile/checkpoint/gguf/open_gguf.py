"""Open a GGUF file, or its shards, as a checkpoint: a folder with its settings, and its tensors by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.gguf.container import Container, read_container
from mxspec.compile.checkpoint.gguf.dense_families import DENSE
from mxspec.compile.checkpoint.gguf.family import EXPERTS, FACTORS, ONE_ROW, Facts, GgufFamily, GgufKeys, Settings
from mxspec.compile.checkpoint.gguf.mixtures import LLAMAS_WITH_EXPERTS, MIXTURES
from mxspec.compile.checkpoint.gguf.tensor import EXACT, GgufTensor, LayerParts, as_source, join_parts
from mxspec.compile.checkpoint.gguf.tokenizer import CONTROL, GgufVocabulary, make_tokenizer_json
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.settings.generation_config import GENERATION_CONFIG
from mxspec.compile.checkpoint.tensors.tensor import Tensor, Tensors, hold_open
from mxspec.compile.checkpoint.tensors.weight_files import PICKLES, SAFETENSORS
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.manifest import TOKENIZER
from mxspec.formats.validation import shorten

FAMILIES = DENSE | MIXTURES  # by the names that files give architectures

TEMPLATE = "tokenizer.chat_template"
ENDS = ("eos", "eot", "eom")  # of text, of a turn, of a message
# Control tokens that end a turn even without a key: files of Llama 3, Phi-3 and Gemma have none.
ENDS_OF_TURNS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class OpenedGguf:
    """The folder with the settings, and the tensors under a checkpoint's names."""

    folder: Path
    tensors: dict[str, Tensor]
    notes: tuple[str, ...]


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the one in a folder without other weights. Raises CheckpointError."""
    if path.is_file():
        return path
    if any((path / name).is_file() for kind in (SAFETENSORS, PICKLES) for name in (kind.single, kind.index)):
        return None
    found = sorted(path.glob("*.gguf"))
    firsts = [one for one in found if (shard := _SHARD.fullmatch(one.name)) is None or int(shard[2]) == 1]
    if len(firsts) > 1:
        names = ", ".join(one.name for one in firsts[:4])
        raise CheckpointError(f"{path}: holds {len(firsts)} GGUF models ({names}); name one of them")
    return firsts[0] if firsts else None


def shard_pattern(name: str) -> str:
    """A shell pattern for a file, and for all shards of its model if the file is a shard."""
    shard = _SHARD.fullmatch(name)
    return name if shard is None else f"{shard[1]}-*-of-{shard[3]}.gguf"


def open_gguf(path: Path, files: ExitStack) -> OpenedGguf:
    """Open a file with its shards, until `files` closes.

    Raises CheckpointError for a damaged or missing file, UnsupportedModelError for an unknown architecture, tensor, key
    or tokenizer.
    """
    shards = [read_container(shard) for shard in shards_of(path)]
    keys = shards[0].keys
    _check_shards(shards)
    family, own = _family(path, keys)
    sources = _sources(shards, files)
    vocabulary = GgufVocabulary.read(path, keys)
    factors = {name: _vector(sources[name]) for name in FACTORS if name in sources}
    facts = Facts(own, frozenset(sources), factors, len(vocabulary.tokens))
    settings = family.settings(facts)
    own.check_all_read()
    tensors = _named(path, sources, family, settings)
    folder = Path(files.enter_context(TemporaryDirectory()))
    describe(folder, settings, vocabulary, keys)
    return OpenedGguf(folder, tensors, _notes(path, tensors))


def shards_of(path: Path) -> list[Path]:
    """All files of a model from its first or only file; other shards are found by their names."""
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return [path]
    stem, count = shard[1], int(shard[3])
    paths = [path.parent / f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for each in paths:
        if not each.is_file():
            raise CheckpointError(f"{path}: one of {count} shards, of which {each.name} is missing")
    return paths


def _check_shards(shards: list[Container]) -> None:
    for number, shard in enumerate(shards):
        said = _count(shard, "split.no", number), _count(shard, "split.count", 0) or 1
        if said != (number, len(shards)):
            raise CheckpointError(
                f"{shard.path}: is shard {said[0] + 1} of {said[1]}, expected {number + 1} of {len(shards)}; name the "
                "first file, and keep the others beside it"
            )
    found = sum(len(shard.tensors) for shard in shards)
    promised = _count(shards[0], "split.tensors.count", found)
    if promised != found:
        raise CheckpointError(f"{shards[0].path}: its shards hold {found} tensors, expected {promised}")


def _count(shard: Container, name: str, default: int) -> int:
    value = shard.keys.get(name, default)
    if type(value) is not int:
        raise CheckpointError(f"{shard.path}: {name}: got {shorten(value)}, expected a whole number")
    return value


def _family(path: Path, keys: Mapping[str, Any]) -> tuple[GgufFamily, GgufKeys]:
    arch = keys.get("general.architecture")
    if not isinstance(arch, str) or arch not in FAMILIES:
        raise UnsupportedModelError(
            f"{path}: general.architecture: got {shorten(arch)}; supported in GGUF files are {', '.join(FAMILIES)}"
        )
    family = LLAMAS_WITH_EXPERTS if arch == "llama" and keys.get("llama.expert_count") else FAMILIES[arch]
    return family, GgufKeys(path, keys, arch)


def _sources(shards: list[Container], files: ExitStack) -> dict[str, GgufTensor]:
    """Every tensor under its name in the file."""
    sources: dict[str, GgufTensor] = {}
    for shard in shards:
        descriptor = hold_open(shard.path, files)
        for name, stored in shard.tensors.items():
            if name in sources:
                raise CheckpointError(f"tensor {shorten(name)} is in {sources[name].shard} and in {shard.path.name}")
            sources[name] = tensor = GgufTensor(stored, descriptor, shard.path.name)
            if tensor.origins and len(tensor.shape) == 1:
                raise CheckpointError(
                    f"tensor {shorten(name)} of {tensor.shard} is a vector of {tensor.origin}, expected "
                    f"{', '.join(EXACT)}"
                )
    return sources


def _vector(tensor: GgufTensor) -> NDArray[np.float32]:
    if len(tensor.shape) != 1:
        raise CheckpointError(
            f"tensor {tensor.name!r} of {tensor.shard} has shape {list(tensor.shape)}, expected a vector"
        )
    return tensor.read_rows(0, tensor.shape[0])


def _named(path: Path, sources: Mapping[str, GgufTensor], family: GgufFamily, settings: Settings) -> dict[str, Tensor]:
    """The tensors of the checkpoint; reading them undoes the writer's changes."""
    heads = {"attn_q": settings["num_attention_heads"], "attn_k": settings["num_key_value_heads"]}
    tensors: dict[str, Tensor] = {}
    experts: dict[int, LayerParts] = {}
    for own, tensor in sources.items():
        if own in FACTORS:
            continue
        name = family.name_of(own)
        if name is None or (own.startswith("blk.") and int(own.split(".")[1]) >= settings["num_hidden_layers"]):
            raise UnsupportedModelError(
                f"{path}: tensor {shorten(own)} does not belong to a {settings['model_type']} with "
                f"{settings['num_hidden_layers']} layers"
            )
        layer, module, kind = own.split(".")[-3:] if own.startswith("blk.") else ("", own, "")
        if module in EXPERTS:
            parts = experts.setdefault(int(layer), LayerParts(int(layer)))
            (parts.biases if kind == "bias" else parts.matrices)[module] = tensor
            continue
        interleaved = heads[module] if module in family.interleaved else 0
        if interleaved and tensor.shape[0] % (2 * interleaved):
            raise CheckpointError(
                f"{path}: tensor {own!r} has {tensor.shape[0]} rows, expected {interleaved} heads of them"
            )
        shift = 1.0 if family.shifted and len(tensor.shape) == 1 else 0.0
        shape = (1, tensor.shape[-1]) if module in ONE_ROW else tensor.shape
        stored = replace(tensor.stored, name=name, shape=shape)
        tensors[name] = as_source(replace(tensor, stored=stored, heads=interleaved, shift=shift))
    for number, parts in experts.items():
        joined = join_parts(path, parts, settings[family.counted], alternating=family.alternating)
        tensors |= {f"model.layers.{number}.{family.names[EXPERTS[0]]}.{leaf}": one for leaf, one in joined.items()}
    return tensors


def _notes(path: Path, tensors: Tensors) -> tuple[str, ...]:
    rounded = sorted(set[str]().union(*(tensor.origins for tensor in tensors.values())))
    if not rounded:
        return ()
    return (
        f"warning: {path} was rounded before, to {', '.join(rounded)}: its matrices are rounded a second time, and a "
        "baseline (--with-baseline) is the file as it is",
    )


def describe(folder: Path, settings: Settings, vocabulary: GgufVocabulary, keys: Mapping[str, Any]) -> None:
    """Write config.json, generation_config.json, tokenizer.json and tokenizer_config.json into a folder."""
    ids: dict[str, Any] = {
        "bos_token_id": vocabulary.id_of("bos"),
        "eos_token_id": ends_of_text(vocabulary) or None,
    }
    template = keys.get(TEMPLATE)
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{vocabulary.path}: {TEMPLATE}: expected text")
    texts = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    described = {name: text for name, role in texts.items() if (text := vocabulary.text_of(role)) is not None}
    for name, content in (
        (CONFIG, {**settings, **ids}),
        (GENERATION_CONFIG, ids),
        ("tokenizer_config.json", described | ({} if template is None else {"chat_template": template})),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / TOKENIZER).write_text(make_tokenizer_json(vocabulary), encoding="utf-8")


def ends_of_text(vocabulary: GgufVocabulary) -> list[int]:
    """Ids that end a text: those in keys, and the control tokens that end a turn."""
    named = [number for role in ENDS if (number := vocabulary.id_of(role)) is not None]
    ids = vocabulary.ids
    turns = [ids[token] for token in ENDS_OF_TURNS if token in ids and vocabulary.types[ids[token]] == CONTROL]
    return list(dict.fromkeys([*named, *turns]))
