"""A text that a recipe names, for calibration or for a drafter."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from mxspec.formats.errors import RecipeError


class RecipeText(NamedTuple):
    """The text of a file, and the SHA-256 of its bytes."""

    text: str
    sha256: str


def read_recipe_text(key: str, path: Path) -> RecipeText:
    """Read the UTF-8 text that the recipe's `key` names. Raises RecipeError if it cannot be read."""
    try:
        content = path.read_bytes()
        return RecipeText(content.decode(), hashlib.sha256(content).hexdigest())
    except OSError as error:
        raise RecipeError(f"{key}: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{key}: {path} is not text in UTF-8") from None
