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


def test_a_second_turn_reads_only_the_new_tokens(
    chat_bundle: str, terminal: Any, tmp_path: Path, engine: Engine
) -> None:
    chat = terminal("--chat", chat_bundle, "--max-new-tokens", "12")
    chat.read_until("> ")
    chat.type("hi\n")
    assert "7 prompt tokens ·" in chat.read_until(f"{ENDED}max_new_tokens")
    chat.read_until("> ")
    chat.type("again\n")
    shown = chat.read_until(f"{ENDED}max_new_tokens")
    assert "30 prompt tokens, 18 of them reused" in shown  # u:hi a: answer (12, the last is read again) \n u:again a:
    chat.read_until("> ")
    chat.type(f"/save {tmp_path / 'chat.json'}\n")
    chat.read_until("Saved in")
    chat.read_until("> ")
    chat.type(END_OF_INPUT)
    assert chat.wait() == 0
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"] * 2
    first = engine.generate("u:hi\na:", max_new_tokens=12).result()
    prompt = [*engine.encode("u:hi\na:"), *first.token_ids, *engine.encode("\nu:again\na:")]
    second = engine.generate(prompt, max_new_tokens=12).result()
    assert saved["token_ids"] == [*prompt, *second.token_ids]
    assert [message["content"] for message in saved["messages"]] == ["hi", first.text, "again", second.text]
    assert list(tmp_path.iterdir()) == [tmp_path / "chat.json"]


def test_ctrl_c_at_the_prompt_drops_the_line(chat_bundle: str, terminal: Any) -> None:
    chat = terminal("--chat", chat_bundle)
    for line in ("", "half a line"):
        chat.read_until("> ")
        time.sleep(0.2)  # the line editor shows its prompt before it listens
        chat.type(line + INTERRUPT)
    chat.read_until("\n> ")
    chat.type("hi\n")
    chat.read_until(ENDED)
    chat.type("/exit\n")
    assert chat.wait() == 0


def test_commands(chat_bundle: str, terminal: Any, tmp_path: Path) -> None:
    chat = terminal("--chat", chat_bundle, "--max-new-tokens", "4", "--system", "be brief")
    chat.read_until("> ")

    def say(line: str, answer: str) -> str:
        chat.type(line + "\n")
        shown = chat.read_until(answer)
        chat.read_until("> ")
        return str(shown)

    def saved() -> list[dict[str, str]]:
        say(f"/save {tmp_path / 'chat.json'}", "Saved in")
        messages: list[dict[str, str]] = json.loads((tmp_path / "chat.json").read_text())["messages"]
        return messages

    assert saved() == [{"role": "system", "content": "be brief"}]
    assert "18 prompt tokens" in say("hi", ENDED)
    assert [message["role"] for message in saved()] == ["system", "user", "assistant"]
    say("/system be long", "is changed")
    assert saved()[0]["content"] == "be long"
    say("/reset", "forgotten")
    assert saved() == [{"role": "system", "content": "be long"}]
    say("/system", "no system message")
    assert saved() == []
    assert "7 prompt tokens" in say("hi", ENDED)
    assert "did you mean '/reset'?" in say("/rest", "/help names them")
    assert "expected the name of a file" in say("/save", "after it")
    assert "cannot be written" in say("/save /nowhere/at/all", "No such file")
    for command in ("/reset", "/system TEXT", "/save FILE", "/exit"):
        assert command in say("/help", "makes it a message")
    assert "expected 1 to 96, the context length" in say("x" * 100, "context length")
    assert "prompt tokens" in say(" /reset, as a message", ENDED)
    assert saved()[-2]["content"] == " /reset, as a message"
    chat.type("/exit\n")
    assert chat.wait() == 0
    assert "Traceback" not in chat.shown


def test_ctrl_c_ends_the_answer_and_keeps_the_text_so_far(chat_bundle: str, terminal: Any, tmp_path: Path) -> None:
    chat = terminal("--chat", chat_bundle, "--k", "0", "--max-new-tokens", "40", code=slow(0.05))
    chat.read_until("> ")
    chat.type("hi\n")
    chat.read_until("\n")
    chat.read_until("\t")  # the fifth token of this answer
    chat.type(INTERRUPT)
    time.sleep(0.01)
    chat.type(INTERRUPT)  # once more does no harm
    shown = chat.read_until(f"{ENDED}cancelled")
    written = int(re.findall(r"(\d+) tokens in", shown)[0])
    assert 5 <= written <= 10
    chat.read_until("> ")
    chat.type(f"/save {tmp_path / 'chat.json'}\n")
    chat.read_until("Saved in")
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert len(saved["token_ids"]) == 7 + written
    assert saved["messages"][1]["role"] == "assistant"
    chat.type("go on\n")
    assert f"{7 + written - 1} of them reused" in chat.read_until(ENDED)
    chat.type("/exit\n")
    assert chat.wait() == 0


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
    chat.read_until("> ")
    chat.type("<eos>\n")
    assert f" {len('u:_a:') + tokens} prompt tokens ·" in chat.read_until(f"{ENDED}max_new_tokens")
    chat.type("/exit\n")
    assert chat.wait() == 0
