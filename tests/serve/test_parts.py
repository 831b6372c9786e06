"""Parts of the server that need none: calls of tools, keys, names of hosts, and names of tokens."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from mxspec.formats.errors import MxspecError
from mxspec.serve.commands.specserve import listen
from mxspec.serve.engines.models import aliases_of, models_of
from mxspec.serve.engines.token_texts import TokenTexts
from mxspec.serve.http.hosts import is_loopback
from mxspec.serve.http.keys import read_keys
from mxspec.serve.http.limits import Limits
from mxspec.serve.texts.tools import CallReader, CallStyle

CALL = '{"name": "f", "arguments": {"a": [1, "é"]}}'
NAMED = [("f", {"a": [1, "é"]})]


@pytest.mark.parametrize(
    ("style", "text", "rest", "calls"),
    [
        ("hermes", "no call <tool", "no call <tool", []),
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", NAMED),
        ("hermes", f"so: <tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "so: ", NAMED * 2),
        ("hermes", f"<tool_call>{CALL}", "", NAMED),  # the text ended before the last tag
        ("hermes", "<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", []),
        ("hermes", '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ("hermes", "a < b <tool_cal> c", "a < b <tool_cal> c", []),
        ("llama", CALL.replace("arguments", "parameters"), "", NAMED),
        ("llama", "<|python_tag|>" + CALL, "", NAMED),
        ("llama", "  {not a call", "  {not a call", []),
        ("llama", f"no: {CALL}", f"no: {CALL}", []),
        ("llama", "", "", []),
    ],
)
def test_calls_are_read_however_the_text_is_cut(
    style: CallStyle, text: str, rest: str, calls: list[tuple[str, object]]
) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        reader, shown, at = CallReader(style, ["f", "g", "weather"]), "", 0
        while at < len(text):
            step = rng.randrange(1, 9) if seed else len(text)
            piece = reader.push(text[at : at + step])
            assert "<tool_call>" not in piece
            shown, at = shown + piece, at + step
        more, found = reader.finish()
        assert shown + more == rest
        assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found] == calls
        assert len({call["id"] for call in found}) == len(found)


def test_keys_are_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n  one-long-key \n# no key\nanother-key\n")
    assert read_keys(file) == ["one-long-key", "another-key"]
    for text in ("", "# nothing\n", "short\n", "with a blank\n", "twice-twice\ntwice-twice\n", "not-asciié\n"):
        file.write_text(text)
        with pytest.raises(MxspecError):
            read_keys(file)
    with pytest.raises(MxspecError):
        read_keys(tmp_path / "none")


def test_who_can_reach_an_address() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "example.com", "10.0.0.1")] == [False] * 4


def test_a_port_in_use_is_one_line_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MxspecError) as caught:
            listen("127.0.0.1", port, Limits())
    assert str(caught.value) == (
        f"--host 127.0.0.1 --port {port}: cannot listen: Address already in use; give another --port, such as 0 for a "
        "free one"
    )


def test_an_answer_does_not_wait_for_the_packet_before_it() -> None:
    with listen("127.0.0.1", 0, Limits()) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_names_of_tokens_join_to_the_text(byte_tokenizer: Tokenizer) -> None:
    texts = TokenTexts(byte_tokenizer)
    text = "naïve ≠ 日本"
    ids = byte_tokenizer.encode(text).ids
    assert b"".join(map(texts.bytes_of, ids)).decode() == text
    assert texts.name(ids[2]) == r"bytes:\xc3"
    assert texts.text(ids[2]) == "\N{REPLACEMENT CHARACTER}"
    assert texts.name(257) == "<eos>"
    assert len({texts.name(token) for token in range(259)}) == 259  # each token has a name of its own


def test_names_of_sentencepiece_tokens_keep_their_blanks() -> None:
    vocabulary = {"<unk>": 0, "<0xE2>": 1, "▁of": 2, "f": 3, "▁": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    texts = TokenTexts(tokenizer)
    assert [texts.bytes_of(token) for token in (1, 2, 3, 4)] == [b"\xe2", b" of", b"f", b" "]


COMPILER = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "mxspec.compile", "mxspec.evaluate", "ray")


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("mxspec.serve.start", COMPILER),
        ("mxspec.serve.app", COMPILER),
        ("mxspec.serve.commands.specserve", (*COMPILER, "onnxruntime", "tokenizers", "starlette", "uvicorn")),
    ],
)
def test_the_server_imports_no_compiler_and_help_no_runtime(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_aliases_are_further_names(bundle: Path) -> None:
    models = models_of([bundle])
    assert aliases_of(["gpt-4", "x=tiny"], models) == {"gpt-4": "tiny", "x": "tiny"}
    for wrong in ("tiny", "=tiny", "x=other"):
        with pytest.raises(MxspecError, match=f"^--alias {wrong}: "):
            aliases_of([wrong], models)
    with pytest.raises(MxspecError, match="--alias x: "):
        aliases_of(["x", "x"], models)
