"""A chat at a terminal: turns that go on from each other, commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mxspec import Engine

from .conftest import slow

ENDED = "ended by "
END_OF_INPUT, INTERRUPT = "\x04", "\x03"


@pytest.fixture(scope="module")
def engine(chat_bundle: str) -> Engine:
    return Engine(chat_bundle)


def say(chat: Any, line: str, answer: str = ENDED) -> str:
    """Type a line at the prompt; what is shown up to `answer`."""
    chat.read_until("> ")
    chat.type(f"{line}\n")
    return str(chat.read_until(answer))


def saved(chat: Any, folder: Path) -> dict[str, Any]:
    """What /save writes."""
    say(chat, f"/save {folder / 'chat.json'}", "Saved in")
    found: dict[str, Any] = json.loads((folder / "chat.json").read_text())
    return found


def leave(chat: Any) -> None:
    chat.type("/exit\n")
    assert chat.wait() == 0


def test_a_second_turn_reads_only_the_new_tokens(
    chat_bundle: str, terminal: Any, tmp_path: Path, engine: Engine
) -> None:
    chat = terminal("--chat", chat_bundle, "--max-new-tokens", "12")
    assert "7 prompt tokens ·" in say(chat, "hi", f"{ENDED}max_new_tokens")
    shown = say(chat, "again", f"{ENDED}max_new_tokens")
    assert "30 prompt tokens, 18 of them reused" in shown  # u:hi a: answer (12, the last is read again) \n u:again a:
    found = saved(chat, tmp_path)
    chat.read_until("> ")
    chat.type(END_OF_INPUT)
    assert chat.wait() == 0
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"] * 2
    first = engine.generate("u:hi\na:", max_new_tokens=12).result()
    prompt = [*engine.encode("u:hi\na:"), *first.token_ids, *engine.encode("\nu:again\na:")]
    second = engine.generate(prompt, max_new_tokens=12).result()
    assert found["token_ids"] == [*prompt, *second.token_ids]
    assert [message["content"] for message in found["messages"]] == ["hi", first.text, "again", second.text]
    assert list(tmp_path.iterdir()) == [tmp_path / "chat.json"]


def test_ctrl_c_at_the_prompt_drops_the_line(chat_bundle: str, terminal: Any) -> None:
    chat = terminal("--chat", chat_bundle)
    for line in ("", "half a line"):
        chat.read_until("> ")
        time.sleep(0.2)  # the line editor shows its prompt before it listens
        chat.type(line + INTERRUPT)
    chat.read_until("\n")
    say(chat, "hi")
    leave(chat)


def test_commands(chat_bundle: str, terminal: Any, tmp_path: Path) -> None:
    chat = terminal("--chat", chat_bundle, "--max-new-tokens", "4", "--system", "be brief")

    def messages() -> list[dict[str, str]]:
        found: list[dict[str, str]] = saved(chat, tmp_path)["messages"]
        return found

    assert messages() == [{"role": "system", "content": "be brief"}]
    assert "18 prompt tokens" in say(chat, "hi")
    assert [message["role"] for message in messages()] == ["system", "user", "assistant"]
    say(chat, "/system be long", "is changed")
    assert messages()[0]["content"] == "be long"
    say(chat, "/reset", "forgotten")
    assert messages() == [{"role": "system", "content": "be long"}]
    say(chat, "/system", "no system message")
    assert messages() == []
    assert "7 prompt tokens" in say(chat, "hi")
    assert "did you mean '/reset'?" in say(chat, "/rest", "/help names them")
    assert "expected the name of a file" in say(chat, "/save", "after it")
    assert "cannot be written" in say(chat, "/save /nowhere/at/all", "No such file")
    for command in ("/reset", "/system TEXT", "/save FILE", "/exit"):
        assert command in say(chat, "/help", "makes it a message")
    assert "expected 1 to 96, the context length" in say(chat, "x" * 100, "context length")
    assert "prompt tokens" in say(chat, " /reset, as a message")
    assert messages()[-2]["content"] == " /reset, as a message"
    leave(chat)
    assert "Traceback" not in chat.shown


def test_ctrl_c_ends_the_answer_and_keeps_the_text_so_far(chat_bundle: str, terminal: Any, tmp_path: Path) -> None:
    chat = terminal("--chat", chat_bundle, "--k", "0", "--max-new-tokens", "40", code=slow(0.05))
    say(chat, "hi", "\n")
    chat.read_until("\t")  # the fifth token of this answer
    chat.type(INTERRUPT)
    time.sleep(0.01)
    chat.type(INTERRUPT)  # once more does no harm
    shown = chat.read_until(f"{ENDED}cancelled")
    written = int(re.findall(r"(\d+) tokens in", shown)[0])
    assert 5 <= written <= 10
    found = saved(chat, tmp_path)
    assert len(found["token_ids"]) == 7 + written
    assert found["messages"][1]["role"] == "assistant"
    assert f"{7 + written - 1} of them reused" in say(chat, "go on")
    leave(chat)


def test_options_without_effect_in_a_chat_are_refused(chat_bundle: str, bundle: str, terminal: Any) -> None:
    for arguments, says in (
        ([chat_bundle, "--json"], "--json: given with a chat"),
        ([chat_bundle, "--temperature", "1", "--n", "2"], "--n: given with a chat"),
        ([chat_bundle, "--temperature", "1", "--best-of", "2"], "--best-of: given with a chat"),
        ([bundle], "has no chat template"),
    ):
        chat = terminal("--chat", *arguments)
        assert chat.wait() == 1
        assert says in chat.shown
        assert chat.shown.count("\n") == 1


@pytest.mark.parametrize(("options", "tokens"), [([], 1), (["--typed-control-tokens", "text"], len("<eos>"))])
def test_a_typed_control_token_is_what_was_asked(
    chat_bundle: str, terminal: Any, options: list[str], tokens: int
) -> None:
    chat = terminal("--chat", chat_bundle, "--max-new-tokens", "1", *options)
    assert f" {len('u:_a:') + tokens} prompt tokens ·" in say(chat, "<eos>", f"{ENDED}max_new_tokens")
    leave(chat)
