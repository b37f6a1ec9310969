"""Editors, through pyright's language server: completion offers public names, hovers show docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parents[2] / "src"

# The places are marked: `^` follows the text in question, and is removed.
PROGRAM = '''
import jax
import treewright
from treewright import Module, TrainState, at, field, pytree_dataclass, replace, static
from treewright.typed import grad, jit


@pytree_dataclass
class Layer:
    """One layer."""

    kernel: jax.Array
    """The learned parameters."""
    width: int = static(default=3)


class Net(Module):
    first: Layer

    @jit
    def predict(self, x: jax.Array) -> jax.Array:
        """The prediction."""
        return x


def loss(net: Net, x: jax.Array) -> jax.Array:
    return x


def places(layer: Layer, net: Net, state: TrainState[Net], x: jax.Array) -> None:
    net.^0
    layer.^1
    state.^2
    treewright.^3
    net.predict.^4
    net.first.kernel^6
    at(net, lambda net: net.^7)
    grad^8(loss)(net, x)
    replace^9(net)
    Layer(^5
'''


class Server:
    """A language server that has read one file."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.uri = (folder / "program.py").as_uri()
        self.asked = 0
        text = re.sub(r"\^\d", "", PROGRAM)
        workspace = {"uri": folder.as_uri(), "name": "program"}
        root: dict[str, Any] = {
            "workspaceFolders": [workspace],
            "rootUri": folder.as_uri(),
            "processId": None,
            "capabilities": {},
        }
        self.request("initialize", root)
        self.notify("initialized", {})
        opened = {"uri": self.uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": opened})

    def notify(self, method: str, params: Any, number: int | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
        self.send(message)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def request(self, method: str, params: Any) -> Any:
        self.asked += 1
        self.notify(method, params, self.asked)
        while True:
            message = self.receive()
            if message.get("id") == self.asked and "method" not in message:
                return message["result"]
            if "id" in message:  # the server asks for settings
                empty = [None] * len(message.get("params", {}).get("items", []))
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": empty})

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while (line := self.process.stdout.readline().strip()) or not length:
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        return message

    def at(self, place: int) -> dict[str, Any]:
        before = re.sub(r"\^\d", "", PROGRAM.partition(f"^{place}")[0])
        position = {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}
        return {"textDocument": {"uri": self.uri}, "position": position}

    def completions(self, place: int) -> set[str]:
        """The completions, without the names that every object has."""
        found = self.request("textDocument/completion", self.at(place))
        items = found["items"] if isinstance(found, dict) else found
        return {item["label"] for item in items if item["kind"] != 14} - set(dir(object))

    def hover(self, place: int) -> str:
        place_of = self.at(place)
        place_of["position"]["character"] -= 1
        text: str = self.request("textDocument/hover", place_of)["contents"]["value"]
        return text

    def signature(self, place: int) -> str:
        label: str = self.request("textDocument/signatureHelp", self.at(place))["signatures"][0]["label"]
        return label


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("editor")
    settings = {"extraPaths": [str(SOURCE)], "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "program.py").write_text(re.sub(r"\^\d", "", PROGRAM), encoding="utf-8")
    server = Server(folder)
    yield server
    server.process.kill()
    server.process.communicate()


def public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_completion_offers_only_public_attributes(server: Server) -> None:
    of_a_module = {"replace", "tree_flatten", "tree_unflatten"}

    assert public(server.completions(0)) == {"first", "predict"} | of_a_module
    assert public(server.completions(1)) == {"kernel", "width"}
    fields = {"step", "apply_fn", "params", "tx", "opt_state"}
    assert public(server.completions(2)) == fields | {"create", "apply_gradients"} | of_a_module
    assert public(server.completions(4)) == {"lower", "trace", "eval_shape"}
    assert public(server.completions(7)) == {"first", "predict"} | of_a_module


def test_completion_of_the_package_is_its_public_names(server: Server) -> None:
    import treewright

    # TYPE_CHECKING can have no other name, and importing it from typing would take too long.
    assert public(server.completions(3)) == {*treewright.__all__, "TYPE_CHECKING"}


def test_hovers_and_signatures_show_fields_types_and_docs(server: Server) -> None:
    assert server.signature(5) == "(kernel: Array, width: int = 3) -> Layer"
    assert "kernel: Array" in server.hover(6)
    assert "The learned parameters." in server.hover(6)
    assert "the gradient has the type of the differentiated argument" in server.hover(8)
    assert "A copy of `node` with some fields replaced" in server.hover(9)
