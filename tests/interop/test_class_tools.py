"""Python tools that read or change a class: each treats a Module and a decorated class like a plain dataclass.

The tools of docs/works-with.md, and others; the plain dataclass shows that the tool itself expects this.
"""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import os
import pydoc
import re
import subprocess
import sys
import types
import typing
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import jax
import pytest

import treewright

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

NODES = {"module": "class Net(Module):", "decorated": "@pytree_dataclass\nclass Net:"}
KINDS = {**NODES, "dataclass": "@dataclass(frozen=True)\nclass Net:"}
HEAD = """
from dataclasses import dataclass
from typing import Self
import jax
import jax.numpy as jnp
import treewright
from treewright import Module, field, pytree_dataclass, static
"""
BODY = '''
    """A net."""

    x: float
    n: int = 3

    def scaled(self, y: float) -> float:
        """Multiply.

        >>> Net(2.0).scaled(3.0)
        6.0
        """
        return self.x * y

    def same(self) -> Self:
        return self

    def other(self) -> Self:
        return 3

    @staticmethod
    def twice(y: float) -> float:
        return 2 * y

    @classmethod
    def of(cls, y: float) -> Self:
        return cls(y)

    @property
    def double(self) -> float:
        return 2 * self.x
'''
EXAMPLE = '''
        """An example.

        >>> float(Net(2.0).scaled(2.0))
        4.0
        """
        return self.x

'''
CONVERTERS = """
    sizes: tuple[int, ...] = static(converter=tuple)
    w: jax.Array = field(converter=jnp.asarray)
"""


@pytest.fixture(name="folder")
def a_folder_for_modules(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A folder on `sys.path`, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: pathlib.Path, kind: str, *, body: str = BODY, above: str = "", name: str = "nets") -> None:
    (folder / f"{name}.py").write_text(f"{HEAD}{above}{KINDS[kind]}\n{body}")


def net_class(folder: pathlib.Path, kind: str, *, body: str = BODY, above: str = "") -> Any:
    """The class `Net` of a module in this folder."""
    write(folder, kind, body=body, above=above)
    return importlib.import_module("nets").Net


def output(program: str, folder: pathlib.Path, *options: str) -> str:
    """The output of a program in a new process."""
    (folder / "program.py").write_text(program)
    paths = [str(folder), *filter(None, sys.path)]
    result = subprocess.run(
        [sys.executable, *options, "program.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def assert_works(cls: Any, kind: str) -> None:
    """Whether nodes of a class behave, after a tool has changed it."""
    node = cls(2.0)
    assert (node.x, node.n, node.scaled(3.0), cls.twice(2.0), cls.of(1.0).x, node.double) == (
        2.0,
        3,
        6.0,
        4.0,
        1.0,
        4.0,
    )
    if kind == "dataclass":
        return
    spec = jax.tree.map(lambda _: None, node)
    assert (spec.x, jax.tree.leaves(node), jax.jit(lambda net: net.x + 1)(node)) == (None, [2.0, 3], 3.0)
    with pytest.raises(treewright.errors.FieldOnClassError):
        _ = cls.x == 2.0
    with pytest.raises(AttributeError, match="frozen"):
        node.x = 1.0
    if kind == "module":
        assert jax.tree.leaves(node.scaled) == [2.0, 3]


# Checks at run time


def violation(call: Any) -> str:
    """The name of the error that a call raises; empty if it raises none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_beartype_checks_the_constructor_the_methods_and_self(folder: pathlib.Path, kind: str) -> None:
    pytest.importorskip("beartype")
    cls = net_class(folder, kind, above="from beartype import beartype\n@beartype\n")
    node = cls(2.0)

    assert violation(lambda: cls("no")) == "BeartypeCallHintParamViolation"
    assert violation(lambda: node.scaled("no")) == "BeartypeCallHintParamViolation"
    assert violation(lambda: cls.twice("no")) == "BeartypeCallHintParamViolation"
    assert violation(node.other) == "BeartypeCallHintReturnViolation"
    assert node.same() is node
    assert_works(cls, kind)


def test_the_import_hook_of_beartype_checks_all_and_warns_of_nothing(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("beartype")
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("from beartype.claw import beartype_this_package; beartype_this_package()")
    for kind in NODES:  # a plain dataclass is not a pytree
        write(package, kind, body=f"{BODY}\n{KINDS[kind].replace('Net', 'Conv')}{CONVERTERS}", name=kind)
    program = """
import importlib, jax
for kind in ("module", "decorated"):
    nets = importlib.import_module(f"pkg.{kind}")
    Net, node = nets.Net, nets.Net(2.0)
    for call in (lambda: Net("no"), lambda: node.scaled("no"), lambda: Net.twice("no"), node.other, node.same):
        try: print("ok" if call() is node else "unchecked", end=" ")
        except Exception: print("checked", end=" ")
    print(nets.Conv([1, 2], 3.0).sizes, jax.tree.map(lambda _: None, node), jax.tree.leaves(node.same)[:2] == [2.0, 3])
"""
    expected = "checked checked checked checked ok (1, 2) Net(x=None, n=None)"

    assert output(program, tmp_path, "-W", "error") == f"{expected} True\n{expected} False\n"


@pytest.mark.parametrize("kind", KINDS)
def test_typeguard_checks_the_methods(folder: pathlib.Path, kind: str) -> None:
    pytest.importorskip("typeguard")
    cls = net_class(folder, kind, above="from typeguard import typechecked\n@typechecked\n")
    node = cls(2.0)

    assert violation(lambda: node.scaled("no")) == "TypeCheckError"
    assert violation(lambda: cls.twice("no")) == "TypeCheckError"
    assert violation(node.other) == "TypeCheckError"
    assert node.same() is node
    assert_works(cls, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_import_hook_of_typeguard_checks_the_methods(folder: pathlib.Path, kind: str) -> None:
    typeguard = pytest.importorskip("typeguard")
    write(folder, kind)

    with typeguard.install_import_hook("nets"):
        cls = importlib.import_module("nets").Net

    assert violation(lambda: cls(2.0).scaled("no")) == "TypeCheckError"
    assert_works(cls, kind)


@pytest.mark.parametrize("kind", NODES)  # A plain dataclass is not a pytree.
def test_jaxtyping_checks_what_a_converter_accepts(folder: pathlib.Path, kind: str) -> None:
    jaxtyping = pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    body = f"{CONVERTERS}    n: int = 3\n    def f(self, y: float) -> float: return self.n * y\n"
    lines = "from jaxtyping import jaxtyped\nfrom beartype import beartype\n@jaxtyped(typechecker=beartype)\n"
    decorated = net_class(folder, kind, above=lines, body=body)
    write(folder, kind, body=body, name="hooked")
    with jaxtyping.install_import_hook("hooked", "beartype.beartype"):
        hooked = importlib.import_module("hooked").Net

    for cls in (decorated, hooked):
        node = cls([1, 2], 3.0)
        assert (node.sizes, node.f(2.0), jax.tree.leaves(node)) == ((1, 2), 6.0, [3.0, 3])
        assert violation(lambda cls=cls: cls([1, 2], 3.0, n="no")) == "TypeCheckError"
    assert "TypeCheckError" in violation(lambda: hooked([1, 2], 3.0).f("no"))


# Documentation


def test_sphinx_shows_the_types_of_fields_and_warns_of_nothing(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sphinx")
    doc = '    d: float = field(default=1.0, doc="A line.\\nAnother line.\\n\\nA paragraph.")\n'
    for kind in KINDS:
        documented = BODY if kind == "dataclass" else BODY.replace("    n: int", f"{doc}    n: int")
        write(tmp_path, kind, body=documented.replace("x: float\n", 'x: float\n    "The x."\n'), name=kind)
    (tmp_path / "conf.py").write_text("extensions = ['sphinx.ext.autodoc']\nproject = 'nets'\n")
    options = "   :members:\n   :undoc-members:\n   :inherited-members:\n"
    classes = "".join(f"\n.. autoclass:: {kind}.Net\n{options}" for kind in KINDS)
    (tmp_path / "index.rst").write_text(f"Nets\n====\n{classes}")
    program = "from sphinx.cmd.build import main; print(main('-q -W --keep-going -b text . out'.split()))"

    assert output(program, tmp_path) == "0\n"
    text = (tmp_path / "out" / "index.txt").read_text()
    for shown in ("x: float", "The x.", "scaled(y: float) -> float"):
        assert [shown in part for part in re.split(r"class \w+\.Net\(", text)[1:]] == [True, True, True]
    assert ": Any" not in text.replace("**changes: Any", "")


@pytest.mark.parametrize("kind", KINDS)
def test_doctest_runs_the_examples_of_methods(folder: pathlib.Path, kind: str) -> None:
    wrappers = ["property"] if kind == "dataclass" else ["property", "jax.jit"]
    methods = [f"    @{wrapper}\n    def f{number}(self):\n{EXAMPLE}" for number, wrapper in enumerate(wrappers)]
    net_class(folder, kind, body="".join([BODY, *methods]))

    assert doctest.testmod(sys.modules["nets"]) == (0, 1 + len(methods))


@pytest.mark.parametrize("kind", KINDS)
def test_help_names_methods_as_users_call_them(folder: pathlib.Path, kind: str) -> None:
    text = pydoc.plain(pydoc.render_doc(net_class(folder, kind)))

    wrong = {
        name for name in ("equal(", "hash_of(", "flat_form(", "set_attribute(", "node_repr(", " = ") if name in text
    }
    assert not wrong - {" = "}, text
    assert "scaled(self, y: float) -> float" in text
    assert {"__eq__(self", "__hash__(self", "__repr__(self"} <= {*re.findall(r"__\w+__\(self", text)}
    assert not [name for name in ("equal(", "hash_of(", "flat_form(", "node_repr(") if name in text]


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_finds_functions_sources_and_types(folder: pathlib.Path, kind: str) -> None:
    cls = net_class(folder, kind)

    assert str(inspect.signature(cls)) == "(x: float, n: int = 3) -> None"
    assert {name for name, _ in inspect.getmembers_static(cls, inspect.isfunction)} >= {"scaled", "same", "other"}
    assert inspect.getsource(cls).startswith(KINDS[kind].splitlines()[0])
    assert "return self.x * y" in inspect.getsource(inspect.getattr_static(cls, "scaled"))
    assert typing.get_type_hints(cls.__init__) == {"x": float, "n": int, "return": types.NoneType}
    assert typing.get_type_hints(cls.scaled) == {"y": float, "return": float}
    assert inspect.unwrap(cls.scaled).__qualname__ == "Net.scaled"
    assert "class Module:" in inspect.getsource(treewright.Module)


# Notebooks. The modules are named after their kinds, and one process reloads them all.

RELOAD = """
import contextlib, io, os, pathlib, time
from IPython.core.interactiveshell import InteractiveShell

shell, age = InteractiveShell.instance(), time.time()

def cell(code):
    with contextlib.redirect_stdout(io.StringIO()):
        return shell.run_cell(code)

def run(code):
    result = cell(code)
    result.raise_error()
    return result.result

def write(old="", new=""):
    global age, text
    age += 10
    assert old in text
    text = text.replace(old, new)
    path.write_text(text)
    os.utime(path, (age,) * 2)

run("%load_ext autoreload\\n%autoreload 2\\nimport jax")
"""
FIRST_CELLS = """
kind = "{kind}"
path = pathlib.Path("{kind}.py")
text = path.read_text()
write()
run("from {kind} import Net\\nnet = Net(2.0)")
run("net.x")
"""


def reloaded(folder: pathlib.Path, cells: str, *, body: str = BODY) -> dict[str, list[str]]:
    """The lines that cells print for the class of each kind."""
    pytest.importorskip("IPython")
    for kind in KINDS:
        write(folder, kind, body=body, name=kind)
    programs = [f"{FIRST_CELLS.format(kind=kind)}{cells}print('END')" for kind in KINDS]
    parts = output("\n".join([RELOAD, *programs]), folder).split("END\n")
    return {kind: part.splitlines() for kind, part in zip(KINDS, parts, strict=False)}


def test_autoreload_of_a_method_keeps_the_class(tmp_path: pathlib.Path) -> None:
    lines = reloaded(
        tmp_path,
        """
write("self.x * y", "self.x + y")
print(run("(net.scaled(3.0), Net(4.0).scaled(3.0), type(net) is Net, isinstance(net, Net))"))
if kind == "module":
    print(run("jax.tree.leaves((net.scaled, Net(4.0).scaled))"))
if kind != "dataclass":
    print(run("jax.tree.map(lambda a, b: a + b, net, Net(1.0))"))
""",
    )

    same = "(5.0, 7.0, True, True)"
    assert lines == {
        "module": [same, "[2.0, 3, 4.0, 3]", "Net(x=3.0, n=6)"],
        "decorated": [same, "Net(x=3.0, n=6)"],
        "dataclass": [same],
    }


FIELDS = "x: float; y: float = 1.0; act: str = static(default='relu')"
OTHER_FIELDS = {  # one after the other, and a value of a new instance
    "y: float = 3.0; x: float = 5.0; mode: str = static(default='a')": ("x", "5.0"),
    "x: float; mode: str = static(default='a')": ("mode", "'a'"),  # one field less
    "x: float = field(converter=lambda x: 2 * x)": ("x", "8.0"),  # no static any more
    "x: float = field(converter=lambda x: 3 * x)": ("x", "12.0"),
    "x: float; y: list = field(default_factory=lambda: [7])": ("y", "[7]"),
    "x: float; y: list = field(init=False, default_factory=lambda: [8])": ("y", "[8]"),
    "x: float; y: list = field(init=False, default_factory=lambda: [9])": ("y", "[9]"),
    "x: float; y: float = field(init=False, default=6.0)": ("y", "6.0"),
    "x: float; y: float = field(init=False, default=7.0)": ("y", "7.0"),
    "x: float; y: float = field(init=False)\n    def __post_init__(self): self.y = self.x + 1": ("y", "5.0"),
    "x: float; y: float = 3.0; mode: str = static(default='b')": ("mode", "'b'"),
}


def test_autoreload_of_fields_keeps_the_values_of_old_instances(tmp_path: pathlib.Path) -> None:
    lines = reloaded(
        tmp_path,
        f"""
run("from treewright import replace")
old = {FIELDS!r}
for new, name in {[(fields, name) for fields, (name, _) in OTHER_FIELDS.items()]}:
    if kind != "dataclass":
        write(old, new)
        old = new
        print(run(f"(net.x, Net(4.0).{{name}})"), run("jax.tree.leaves(net)"))
        print(cell("replace(net, x=1.0)").error_in_exec)
print(cell("net.mode").error_in_exec)
""",
        body=f"    {FIELDS}\n",
    )
    belongs = "belongs to an older definition of the class, with the fields x, y, act. Recreate the object."

    assert lines.pop("dataclass") == ["'Net' object has no attribute 'mode'"]
    for kind in NODES:
        *values, missing = lines[kind]
        assert missing == f"This Net has no field mode: it {belongs}"
        assert values == [
            line for _, value in OTHER_FIELDS.values() for line in (f"(2.0, {value}) [2.0, 1.0]", f"This Net {belongs}")
        ]


def test_autoreload_of_an_init_needs_one_more_call(tmp_path: pathlib.Path) -> None:
    assign = "object.__setattr__(self, 'x', x)"
    lines = reloaded(
        tmp_path,
        """
write("'x', x)", "'x', x + 1)")
first = cell("Net(4.0)")
print("call Net(...) again" in str(first.error_in_exec), run("Net(4.0).x"), run("net.x"))
""",
        body=f"    x: float\n    def __init__(self, x: float) -> None:\n        {assign}\n",
    )

    assert lines == {kind: [f"{kind != 'dataclass'} 5.0 2.0"] for kind in KINDS}


# Pickles

DUMP = """
import cloudpickle
def local():
{local}
    return Net
for cls in (Net, local()):
    node = cls(2.0)
    print(cloudpickle.dumps((node, cls, node.scaled)).hex())
"""
LOAD = """
import cloudpickle, jax
for line in open("pickles"):
    node, cls, method = cloudpickle.loads(bytes.fromhex(line))
    print(node, type(node) is cls, cls(4.0).scaled(2.0), method(3.0), jax.tree.leaves((node, method)))
"""


def test_cloudpickle_sends_classes_of_main_and_of_functions(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("cloudpickle")
    programs: list[str] = []
    for head in KINDS.values():
        local = "".join(f"    {line}\n" for line in f"{head}\n{BODY}".splitlines())
        programs += [f"{HEAD}{head}\n{BODY}", DUMP.format(local=local)]
    (tmp_path / "pickles").write_text(output("\n".join(programs), tmp_path))
    lines = output(LOAD, tmp_path).splitlines()

    assert len(lines) == 2 * len(KINDS)
    for line, kind in zip(lines, [kind for kind in KINDS for _ in range(2)], strict=True):
        assert "Net(x=2.0, n=3) True 8.0 6.0 " in line
        assert line.endswith("[2.0, 3, 2.0, 3]") == (kind == "module")


@pytest.mark.parametrize("kind", KINDS)
def test_dill_sends_classes_of_modules_and_warns_of_others(folder: pathlib.Path, kind: str) -> None:
    dill = pytest.importorskip("dill")
    cls = net_class(folder, kind)
    node = dill.loads(dill.dumps(cls(2.0)))

    assert (type(node), node.x) == (cls, 2.0)
    if kind != "dataclass":
        cls.__module__ = "__main__"
        with pytest.raises(dill.PicklingWarning, match="Cannot locate reference to <class '__main__"):
            dill.dumps(cls(2.0))


# Tests


@pytest.mark.parametrize("kind", KINDS)
def test_a_mock_has_the_signatures_of_the_methods(folder: pathlib.Path, kind: str) -> None:
    cls = net_class(folder, kind)

    spec = mock.create_autospec(cls)(1.0)
    spec.scaled(2.0)
    with pytest.raises(TypeError, match="too many positional arguments"):
        spec.scaled(2.0, 3.0)
    with mock.patch.object(cls, "scaled", autospec=True, return_value=9.0):
        assert cls(1.0).scaled(2.0) == 9.0
    assert_works(cls, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_hypothesis_builds_instances_from_the_annotations(folder: pathlib.Path, kind: str) -> None:
    cls = net_class(folder, kind)

    @hypothesis.given(st.builds(cls, x=st.floats()), st.from_type(cls))
    @hypothesis.settings(database=None, derandomize=True, max_examples=5)
    def holds(built: Any, found: Any) -> None:
        assert isinstance(built, cls)
        assert isinstance(found.n, int)

    holds()


@pytest.mark.parametrize("kind", NODES)
def test_hypothesis_takes_the_type_of_a_field_with_a_converter_from_the_class(folder: pathlib.Path, kind: str) -> None:
    cls = net_class(folder, kind, body=CONVERTERS)

    @hypothesis.given(st.builds(cls, w=st.just(1.0)))
    @hypothesis.settings(database=None, derandomize=True, max_examples=5)
    def holds(node: Any) -> None:
        assert all(type(size) is int for size in node.sizes)

    holds()


# Values built from other formats


@pytest.mark.parametrize("kind", KINDS)
def test_singledispatch_finds_the_class(folder: pathlib.Path, kind: str) -> None:
    cls = net_class(folder, kind)

    @functools.singledispatch
    def name(value: object) -> str:
        return "other"

    def name_of_net(value: Any) -> str:
        return f"net {value.x}"

    name.register(cls, name_of_net)

    assert (name(cls(2.0)), name(3)) == ("net 2.0", "other")


@pytest.mark.parametrize("kind", KINDS)
def test_attrs_classes_hold_instances(folder: pathlib.Path, kind: str) -> None:
    attrs = pytest.importorskip("attrs")
    cls = net_class(folder, kind)
    holder = attrs.make_class("Holder", {"net": attrs.field(type=cls)})(cls(2.0))

    assert attrs.evolve(holder, net=cls(3.0)).net.x == 3.0
    assert attrs.asdict(holder) == {"net": holder.net}


@pytest.mark.parametrize("kind", NODES)
def test_attrs_above_a_node_class_is_rejected(folder: pathlib.Path, kind: str) -> None:
    attrs = pytest.importorskip("attrs")
    cls = net_class(folder, kind)

    with pytest.raises(treewright.errors.NodeDefinitionError, match=r"Remove (the extra|that) decorator"):
        attrs.define(cls)(2.0)


@pytest.mark.parametrize("kind", NODES)
def test_pydantic_accepts_only_instances_and_writes_json(folder: pathlib.Path, kind: str) -> None:
    pydantic = pytest.importorskip("pydantic")
    cls = net_class(folder, kind, body="    x: jax.Array\n    n: int = static(default=3)\n")
    model = pydantic.create_model("Settings", net=(cls, ...))
    node = cls(2.0)

    assert model(net=node).net is node
    assert model(net=node).model_dump_json() == '{"net":{"x":2.0,"n":3}}'
    with pytest.raises(pydantic.ValidationError, match="should be an instance of Net"):
        model(net={"x": 2.0})


@pytest.mark.parametrize("kind", KINDS)
def test_tyro_reads_the_fields_from_the_command_line(folder: pathlib.Path, kind: str) -> None:
    tyro = pytest.importorskip("tyro")
    cls = net_class(folder, kind)

    assert tyro.cli(cls, args=["--x", "2.0"]) == cls(2.0)
