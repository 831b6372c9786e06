"""A real server on the loopback address: specserve in a process of its own, and bundles for it."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from mxspec import Engine
from mxspec.evaluate.bench.serve.server import Address, end, start_specserve, wait_ready

PATIENCE = 60.0  # seconds; a loaded machine is slow
SAID: Any = [{"role": "user", "content": "say so"}]
LONG: dict[str, Any] = {"prompt": "def ", "max_tokens": 1000, "temperature": 0, "mxspec": {"k": 0, "ignore_eos": True}}
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{# <tool_call> #}\n{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n"
    "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
    "{{ c.function.name }}({{ c.function.arguments.city }})\n{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


class Server:
    """A server that answers; what it writes on standard error is kept."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = start_specserve(*arguments)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = Address.of_line(self.wait_for("listening on "))
        self.host, self.port, self.url = self.address.host, self.address.port, self.address.url

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str) -> str:
        """The first line with a text."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = next((line for line in list(self.lines) if text in line), None)
            if found is not None:
                return found
            assert self.process.poll() is None or self._reader.is_alive(), self.lines
            time.sleep(0.01)
        raise AssertionError(f"{text!r} does not come: {self.lines}")

    def wait_ready(self) -> None:
        wait_ready(self.address, self.process, "specserve", lambda: "\n".join(self.lines))

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; what is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data is not None else {}
        try:
            connection.request(method, path, data, given | dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.request("POST", path, body, headers)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.request("GET", "/metrics").body.decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def log(self) -> list[dict[str, Any]]:
        """The access log."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        code = end(self.process)
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The objects of a stream; its end is the text [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream"), self.body
        lines = [line for line in self.body.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        data = [line.removeprefix("data: ") for line in lines]
        return [one if one == "[DONE]" else json.loads(one) for one in data]


class Raw:
    """A client that sends a request and then does as it likes."""

    def __init__(
        self,
        server: Server,
        body: dict[str, Any],
        *,
        path: str = "/v1/completions",
        headers: Mapping[str, str] | None = None,
        receive_bytes: int | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((server.host, server.port))
        data = json.dumps(body).encode()
        given = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": len(data),
            **(headers or {}),
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)

    def __enter__(self) -> socket.socket:
        return self.socket

    def __exit__(self, *_: object) -> None:
        self.socket.close()


Serving = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def serving() -> Serving:
    """serving(bundle, *options): a server that is ready, until the context ends."""

    @contextmanager
    def serving(*arguments: str | Path, ready: bool = True) -> Iterator[Server]:
        server = Server(*arguments)
        try:
            if ready:
                server.wait_ready()
            yield server
        finally:
            server.stop()

    return serving


@pytest.fixture(scope="session")
def bundle(tiny_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny.bundle: random weights, a context of 96 bytes, and a chat template that knows tools."""
    return with_chat_template(tiny_bundles["near"], tmp_path_factory.mktemp("serve") / "tiny.bundle")


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Iterator[Engine]:
    """The engine of `bundle` in this process."""
    with Engine(bundle) as engine:
        yield engine


@pytest.fixture(scope="module")
def text(engine: Engine) -> str:
    """What the model answers to SAID, greedily, in 12 tokens."""
    return engine.generate(messages=SAID, temperature=0, max_new_tokens=12).result().text


@pytest.fixture(scope="module")
def server(bundle: Path, serving: Serving) -> Iterator[Server]:
    """Serves `bundle` with the default settings to the tests of a file."""
    with serving(bundle) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """OpenAI's own client of the server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE, max_retries=0) as client:
        yield client


def with_chat_template(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle, with the chat template of these tests."""
    shutil.copytree(bundle, folder)
    write_file(folder, "chat_template.jinja", TEMPLATE)
    return folder


def write_file(bundle: Path, name: str, text: str) -> None:
    """Replace a file of a bundle, or add it."""
    (bundle / name).write_text(text)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    if name == "tokenizer.json":
        manifest["tokenizer"]["sha256"] = manifest["files"][name]["sha256"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="session")
def demo(demo_bundles: dict[str, Path]) -> Path:
    """pair.bundle, the demo pair: text that makes sense, and takes its time."""
    return demo_bundles["real"]
