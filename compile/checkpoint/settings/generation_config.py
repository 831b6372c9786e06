"""A checkpoint's generation settings: those that a bundle applies, those that a request must ask for, special ids.

As in transformers, they are read from generation_config.json, or from config.json if it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mxspec.formats.errors import CheckpointError
from mxspec.formats.generation import GenerationRules
from mxspec.formats.manifest import SamplingDefaults, TokenizerEntry
from mxspec.formats.sampling import BUNDLED, DRAWN, PARAMETERS
from mxspec.formats.validation import first_problem, parse_json, shorten

GENERATION_CONFIG, CONFIG = "generation_config.json", "config.json"
_FILES = (GENERATION_CONFIG, CONFIG)  # the first that has the key decides
RULES = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "forced_eos_token_id")
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
BEAMS = ("length_penalty", "early_stopping")  # no effect without num_beams
OPTIONS = {  # by key: the option with the same effect
    "num_beams": "beams",
    "num_return_sequences": "n",
    "min_length": "min_new_tokens",
    "max_length": "max_new_tokens",
    "stop_strings": "stop",
} | {name: name for name in (*BEAMS, "min_new_tokens", "max_new_tokens", *PARAMETERS)}
LENGTHS = ("min_length", "max_length")  # lengths that count the tokens an answer begins with
UNSUPPORTED = (  # keys that change texts, and have no option
    "constraints", "diversity_penalty", "dola_layers", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "force_words_ids", "guidance_scale",
    "num_beam_groups", "penalty_alpha", "renormalize_logits", "sequence_bias", "token_healing", "top_h",
    "watermarking_config",
)  # fmt: skip
HARMLESS = {  # keys that change no text, or only the speed
    *SPECIAL,
    "_commit_hash", "_from_model_config", "_original_object_hash", "assistant_confidence_threshold",
    "assistant_early_exit", "assistant_lookbehind", "cache_config", "cache_implementation", "compile_config",
    "continuous_batching_config", "disable_compile", "do_sample", "is_assistant", "low_memory", "max_cache_len",
    "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "output_attentions",
    "output_hidden_states", "output_logits", "output_scores", "prefill_chunk_size", "prompt_lookup_num_tokens",
    "remove_invalid_values", "return_dict_in_generate", "speculation_type", "target_lookbehind", "transformers_version",
    "use_cache", "use_mtp",
}  # fmt: skip
OFF_AT_ONE = ("num_beams", "num_return_sequences", "num_beam_groups", "encoder_repetition_penalty", "guidance_scale")


def read_sampling(folder: Path) -> SamplingDefaults:
    """The manifest's sampling defaults: greedy unless `do_sample` is true; null means that a key is missing.

    A missing key is off, even if transformers has a default for it (top_k 50). Raises CheckpointError for an invalid
    value.
    """
    path = folder / GENERATION_CONFIG
    found = read_object(path)
    stated = {name: found[name] for name in BUNDLED if found.get(name) is not None}
    stated.setdefault("temperature", 1.0)
    try:
        defaults: SamplingDefaults = SamplingDefaults.model_validate(stated)
    except ValidationError as problems:
        raise CheckpointError(f"{path}: {first_problem(problems, SamplingDefaults)}") from None
    if found.get("do_sample") is not True:
        defaults = defaults.model_copy(update={"temperature": 0.0})
    return defaults


def read_rules(
    folder: Path,
    vocab_size: int,
    *,
    eos: Iterable[int] = (),
    decoder_start: tuple[int, ...] = (),
    longest: int | None = None,
) -> GenerationRules:
    """The manifest's rules for single tokens, and the settings that a bundle does not apply.

    `longest` is the context: a limit beyond it has no effect. Ids that the tokenizer does not have are dropped, since
    they are never written. Raises CheckpointError for invalid ids, and for an end token that the tokenizer lacks.
    """
    path = _source(folder)
    found = read_object(path)
    ends = {(token,) for token in eos}
    words = [_word(path, word) for word in _list(path, "bad_words_ids", found.get("bad_words_ids"))]
    words = [word for word in words if word not in ends and all(0 <= token < vocab_size for token in word)]
    never = _ids(path, "suppress_tokens", found.get("suppress_tokens"))
    first = _ids(path, "begin_suppress_tokens", found.get("begin_suppress_tokens"))
    last = _ids(path, "forced_eos_token_id", found.get("forced_eos_token_id"))
    if beyond := [token for token in last if not 0 <= token < vocab_size]:
        raise CheckpointError(
            f"{path}: forced_eos_token_id: got {beyond[0]}, expected ids from 0 to {vocab_size - 1}, the tokenizer's"
        )
    return GenerationRules(
        suppressed=_known(never, vocab_size),
        suppressed_first=_known(first, vocab_size),
        bad_words=tuple(dict.fromkeys(words)),
        forced_last=last,
        not_applied=_not_applied(path, found, decoder_start, longest),
    )


def not_applied_note(rules: GenerationRules, decoder_start: tuple[int, ...] = ()) -> str | None:
    """The line that names the settings that a bundle does not apply, and the options for them."""
    if not rules.not_applied:
        return None
    names = ", ".join(f"{key} {shorten_json(value)}" for key, value in rules.not_applied.items())
    options = [
        f"--{OPTIONS[key].replace('_', '-')} {_asked(key, value, decoder_start)}"
        for key, value in rules.not_applied.items()
        if key in OPTIONS
    ]
    advice = f"; to have them, ask for {' '.join(options)}" if options else "; there is no option for them"
    return f"warning: generation settings of the checkpoint that are not applied: {names}{advice}"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if the file is missing or holds another value."""
    if not path.is_file():
        return {}
    found = parse_json(
        path.read_bytes(), str(path), CheckpointError, finite=path.name != CONFIG
    )  # it is checked before
    return found if isinstance(found, dict) else {}


def shorten_json(value: Any) -> str:
    """A value as in generation_config.json, cut to 60 characters."""
    return json.dumps(value) if isinstance(value, bool | int | float | str) else shorten(value)


def _source(folder: Path) -> Path:
    path = folder / GENERATION_CONFIG
    return path if path.is_file() else folder / CONFIG


def _not_applied(
    path: Path, found: Mapping[str, Any], decoder_start: tuple[int, ...], longest: int | None
) -> dict[str, Any]:
    """Settings that change texts and that the bundle does not apply, in the file's order."""
    applied = {*RULES, *HARMLESS, *(BUNDLED if path.name == GENERATION_CONFIG else (*DRAWN, "temperature"))}
    if decoder_start:
        applied.add("forced_bos_token_id")
    changing = {*OPTIONS, *UNSUPPORTED, "forced_bos_token_id"}
    return {
        key: value
        for key, value in found.items()
        if key not in applied
        and (path.name == GENERATION_CONFIG or key in changing)
        and not _off(key, value, found)
        and not (key in ("max_length", "max_new_tokens") and longest is not None and _beyond(value, longest))
    }


def _off(key: str, value: Any, found: Mapping[str, Any]) -> bool:
    """Whether the setting has no effect."""
    if key in BEAMS and found.get("num_beams") in (None, 1):
        return True
    if key in PARAMETERS:
        return value is None or value == PARAMETERS[key].default
    if key == "forced_bos_token_id":
        return value is None
    if key in OFF_AT_ONE:
        return value in (None, 0, 1)
    return value in (None, 1) if key == "length_penalty" else not value


def _beyond(value: Any, longest: int) -> bool:
    return isinstance(value, int) and value >= longest


def _asked(key: str, value: Any, decoder_start: tuple[int, ...]) -> str:
    """The option with its value; transformers' lengths also count the tokens an answer begins with."""
    if key in LENGTHS and isinstance(value, int):
        return str(max(value - len(decoder_start), 0)) if decoder_start else "N"
    return shorten_json(value)


def _word(path: Path, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise CheckpointError(f"{path}: bad_words_ids: got {shorten(value)}, expected a list of token ids")
    return _ids(path, "bad_words_ids", value)


def _known(tokens: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token for token in tokens if 0 <= token < vocab_size))


def _list(path: Path, key: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise CheckpointError(f"{path}: {key}: got {shorten(value)}, expected a list")
    return value


def _ids(path: Path, key: str, value: Any) -> tuple[int, ...]:
    """Read a token id or a list of token ids."""
    tokens = [value] if type(value) is int else _list(path, key, value)
    for token in tokens:
        if type(token) is not int:
            raise CheckpointError(f"{path}: {key}: got {shorten(token)}, expected a token id")
    return tuple(tokens)


def read_special_tokens(
    folder: Path, sha256: str, vocab_size: int, *, is_encoder_decoder: bool = False
) -> TokenizerEntry:
    """The manifest's tokenizer entry, with a decoder's first ids if the model has an encoder.

    Raises CheckpointError for ids outside the vocabulary, and if the decoder's first id is missing.
    """
    begin, ends = read_ends(folder, vocab_size)
    return TokenizerEntry(
        sha256=sha256,
        vocab_size=vocab_size,
        bos_token_id=begin,
        eos_token_ids=ends,
        decoder_start=_decoder_start(folder, vocab_size) if is_encoder_decoder else (),
    )


def read_ends(folder: Path, vocab_size: int) -> tuple[int | None, tuple[int, ...]]:
    """The id that begins a text, if there is one, and those that end one. Raises CheckpointError as above."""
    begin = _special_ids(folder, "bos_token_id", vocab_size)
    return begin[0] if begin else None, _special_ids(folder, "eos_token_id", vocab_size)


def _decoder_start(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids with which transformers' generate begins an answer: a start id, and perhaps a forced second one."""
    for key in ("decoder_start_token_id", "bos_token_id"):
        if start := _special_ids(folder, key, vocab_size):
            return start[:1] + _special_ids(folder, "forced_bos_token_id", vocab_size)[:1]
    raise CheckpointError(f"{folder}: neither {' nor '.join(_FILES)} has a decoder_start_token_id")


def _special_ids(folder: Path, key: str, vocab_size: int) -> tuple[int, ...]:
    for name in _FILES:
        path = folder / name
        value = read_object(path).get(key)
        if value is None:
            continue
        ids = tuple(value) if isinstance(value, list) else (value,)
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise CheckpointError(f"{path}: {key} {token!r} is not one of the tokenizer's {vocab_size} ids")
        return ids
    return ()
