"""Make a tokenizer.json for a checkpoint without one: transformers converts it, and it is compared with its source."""

from __future__ import annotations

from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedConfig

from mxspec.compile.quiet import quiet_transformers
from mxspec.formats.errors import CheckpointError, MxspecError, UnsupportedModelError
from mxspec.formats.manifest import TOKENIZER
from mxspec.formats.validation import parse_json
from mxspec.runtime.text.untrusted_tokenizer import guarded

PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")  # the latter are T5's and mBART's names
VOCABULARY, MERGES = "vocab.json", "merges.txt"
TOKENIZER_SOURCES = (*PIECES, VOCABULARY, MERGES, "added_tokens.json", "special_tokens_map.json")

# Words, cases, digits, runs of spaces, lines, code, accents, other scripts, and characters that few vocabularies have.
SAMPLE = """The quick brown fox doesn't jump over 1,234 lazy dogs; it's 3.14159 times "faster" than YOU'LL think!
def f(x, *, y=None):
    if x >= 0x7f and not y:  # a comment   with  spaces
\t\treturn {"key": [x ** 2, f'{y!r}\\n']}

Où est la bibliothèque? Größe, naïve, smörgåsbord. Привет, мир! 你好,世界。
こんにちは \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 مرحبا
email@example.org https://example.org/a?b=c&d=%20 → ∑ ½ € 🙂 👩\u200d💻 end."""


def make_tokenizer(folder: Path, config: PreTrainedConfig) -> str:
    """The text of a tokenizer.json made from vocab.json with merges.txt, or from a sentencepiece model.

    Raises CheckpointError if both are missing or the result differs from its source, UnsupportedModelError for a
    tokenizer without a fast form.
    """
    pieces = next((name for name in PIECES if (folder / name).is_file()), None)
    if pieces is None and not all((folder / name).is_file() for name in (VOCABULARY, MERGES)):
        raise CheckpointError(
            f"{folder}: no {TOKENIZER}, and neither {PIECES[0]} nor {VOCABULARY} with {MERGES} to make it from; save a "
            "fast tokenizer there with tokenizer.save_pretrained"
        )
    name, text, expected = _convert(folder, config, pieces)
    with guarded(f"{folder}: no {TOKENIZER}, and the one that transformers makes fails", CheckpointError):
        made = Tokenizer.from_str(text)
        fault = _differs_from_vocabulary(folder, made) if pieces is None else _differs_from_pieces(folder, pieces, made)
        if made.encode(SAMPLE).ids != expected:
            fault = f"splits a sample text differently from its {name}"
    if fault is not None:
        raise CheckpointError(
            f"{folder}: no {TOKENIZER}, and the one that transformers makes {fault}; is the tokenizer_class in "
            "tokenizer_config.json right?"
        )
    return text


def _convert(folder: Path, config: PreTrainedConfig, pieces: str | None) -> tuple[str, str, list[int]]:
    """The class that transformers chooses, its tokenizer.json, and its ids of the sample."""
    try:
        with guarded(f"{folder}"), quiet_transformers():
            found = AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)
            name = type(found).__name__
            if found.is_fast:
                return name, found.backend_tokenizer.to_str(), found(SAMPLE)["input_ids"]
    except MxspecError as error:
        reason = str(error).removeprefix(f"{folder}: ").split(" from one of:")[0][:160]
        if pieces is not None and not _is_sentencepiece(folder / pieces):
            reason = f"{pieces} is cut short, or no sentencepiece model"
        raise CheckpointError(f"{folder}: no {TOKENIZER}, and transformers cannot make one: {reason}") from None
    raise UnsupportedModelError(f"{folder}: no {TOKENIZER}, and its tokenizer, a {name}, has no fast form")


def _is_sentencepiece(path: Path) -> bool:
    """Whether the library that a sentencepiece model is for can read a file."""
    try:
        return SentencePieceProcessor(str(path)).get_piece_size() > 0
    except (RuntimeError, OSError):
        return False


def _differs_from_pieces(folder: Path, pieces: str, made: Tokenizer) -> str | None:
    """How the tokenizer differs from the sentencepiece library, on all pieces and a text; None if they agree."""
    original = SentencePieceProcessor(str(folder / pieces))
    ids = {original.id_to_piece(number): number for number in range(original.get_piece_size())}
    if fault := _lacks(made, ids, pieces):
        return fault
    same = made.encode(SAMPLE, add_special_tokens=False).ids == original.encode(SAMPLE)
    return None if same else f"splits a sample text differently from {pieces}"


def _differs_from_vocabulary(folder: Path, made: Tokenizer) -> str | None:
    """How the tokenizer differs from vocab.json, or fails to give a text back; None if all is right."""
    path = folder / VOCABULARY
    ids = parse_json(path.read_bytes(), str(path), CheckpointError)
    if not isinstance(ids, dict):
        return f"cannot be compared with {VOCABULARY}: expected an object of tokens and their ids"
    if fault := _lacks(made, ids, VOCABULARY):
        return fault
    same = made.decode(made.encode(SAMPLE).ids).strip() == SAMPLE
    return None if same else "does not give a sample text back"


def _lacks(made: Tokenizer, ids: dict[str, int], source: str) -> str | None:
    known = made.get_vocab(with_added_tokens=True)
    wrong = [token for token, number in ids.items() if known.get(token) != number]
    return f"lacks {len(wrong)} of the {len(ids)} tokens of {source}, such as {wrong[0]!r}" if wrong else None
