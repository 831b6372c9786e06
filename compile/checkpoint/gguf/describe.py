"""Make the other files of a checkpoint's folder from a GGUF file's keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxspec.compile.checkpoint.gguf.families.family import Settings
from mxspec.compile.checkpoint.gguf.tokenizer import CONTROL, Vocabulary, make_tokenizer_json
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.settings.generation_config import GENERATION_CONFIG
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import TOKENIZER

TEMPLATE = "tokenizer.chat_template"
ENDS = ("eos", "eot", "eom")  # of text, of a turn, of a message
# Control tokens that end a turn even without a key: files of Llama 3, Phi-3 and Gemma have none.
ENDS_OF_TURNS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")


def describe(folder: Path, settings: Settings, vocabulary: Vocabulary, keys: Mapping[str, Any]) -> None:
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


def ends_of_text(vocabulary: Vocabulary) -> list[int]:
    """Ids that end a text: those in keys, and the control tokens that end a turn."""
    named = [number for role in ENDS if (number := vocabulary.id_of(role)) is not None]
    ids = vocabulary.ids
    turns = [ids[token] for token in ENDS_OF_TURNS if token in ids and vocabulary.types[ids[token]] == CONTROL]
    return list(dict.fromkeys([*named, *turns]))
