"""What a model's own texts begin with: the opening of a user's turn, and first words of many kinds of text."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.chat import TEMPLATE, TOKENIZER_CONFIG, ChatTemplate
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered

WORDS = Path(__file__).with_name("openings.txt")
BETWEEN = 3  # texts of other kinds between two chats
_MARK = "What is it?"


def openings_of(folder: Path, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each opening, for the model whose tokenizer and chat template are in a folder.

    A model with a chat template begins every fourth text as a user would. A tokenizer that knows none of the words
    begins with its first token.
    """
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    texts = [ids for line in lines if (ids := _encoded(tokenizer, line))] or [[0]]
    turn = user_turn(folder, tokenizer)
    if not turn:
        return texts
    groups = (texts[first : first + BETWEEN] for first in range(0, len(texts), BETWEEN))
    return list(chain.from_iterable([turn, *group] for group in groups))


def _encoded(tokenizer: Tokenizer, line: str) -> list[int]:
    try:
        return encode_prompt(tokenizer, line, None)
    except GenerationError:  # it knows other characters only
        return []


def user_turn(folder: Path, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a chat up to the first question; none without a template that renders one."""
    try:
        template = chat_template(folder)
        text = "" if template is None else template.render([{"role": "user", "content": _MARK}])
        return encode_rendered(tokenizer, text[: max(0, text.find(_MARK))])
    except (BundleError, GenerationError):
        return []


def chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a checkpoint's folder, None without one. Raises BundleError for one that cannot be compiled."""
    files = [name for name in (TEMPLATE, TOKENIZER_CONFIG) if (folder / name).is_file()]
    return ChatTemplate.read(folder, files, str(folder))
