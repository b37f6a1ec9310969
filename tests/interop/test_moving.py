"""The table of features in docs/migrating: each cell is tested, library by library."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

from tests.conftest import skip_before_jax
from treewright import pytree_dataclass, static

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "migrating" / "index.md"
SOURCES = {
    "flax.struct": (
        "from flax import struct\n@struct.dataclass\nclass Node:\n{body}",
        "struct.field(pytree_node=False, default='s')",
    ),
    "equinox": ("import equinox as eqx\nclass Node(eqx.Module):\n{body}", "eqx.field(static=True, default='s')"),
    "chex": ("import chex\n@chex.dataclass(frozen=True)\nclass Node:\n{body}", None),
    "jax_dataclasses": (
        "import jax_dataclasses as jdc\n@jdc.pytree_dataclass\nclass Node:\n{body}",
        "jdc.static_field(default='s')",
    ),
    "simple_pytree": (
        "import dataclasses, simple_pytree\n@dataclasses.dataclass\nclass Node(simple_pytree.Pytree):\n{body}",
        "simple_pytree.static_field(default='s')",
    ),
    "register_dataclass": (
        "import dataclasses as d, jax\n@jax.tree_util.register_dataclass\n@d.dataclass(frozen=1)\nclass Node:\n{body}",
        "d.field(default='s', metadata={'static': True})",
    ),
    "Treewright": (
        "from treewright import pytree_dataclass, static\n@pytree_dataclass\nclass Node:\n{body}",
        "static(default='s')",
    ),
}


@dataclasses.dataclass(frozen=True)
class Library:
    """One way to define `Node`, with the children `y` and `x`, in this order, and perhaps a static `s`."""

    name: str

    @property
    def has_statics(self) -> bool:
        return SOURCES[self.name][1] is not None

    def node_class(self, *lines: str) -> Any:
        """The class, with more lines in its body."""
        source, marker = SOURCES[self.name]
        body = ["y: object", "x: object", *([f"s: object = {marker}"] if marker else []), *lines]
        # A separate module, as a user would write it.
        module: dict[str, Any] = {"__name__": __name__}
        exec(source.format(body="\n".join(f"    {line}" for line in body)), module)
        return module["Node"]


def outcome(function: Callable[[], object]) -> str:
    """`yes`, `no` or `error`."""
    try:
        return "yes" if function() else "no"
    except Exception:  # noqa: BLE001  whatever the library does
        return "error"


def accepts_positional_arguments(library: Library) -> bool:
    return bool(library.node_class()(1, 2).x == 2)


def supports_static_strings(library: Library) -> bool:
    node = library.node_class()(y=jnp.ones(2), x=jnp.ones(2))
    return library.has_statics and bool(jax.jit(lambda node: node.s == "s")(node))


def is_frozen(library: Library) -> bool:
    node = library.node_class()(y=1, x=2)
    try:
        node.x = 3
    except AttributeError:  # dataclasses.FrozenInstanceError too
        return True
    return False


def supports_checks(library: Library) -> bool:
    check = "def __post_init__(self):\n        if jnp.ndim(self.x) != 1: raise ValueError('x')"
    node = library.node_class("import jax.numpy as jnp", check.replace("jnp.ndim", "type(self).jnp.ndim"))(
        y=jnp.ones(3), x=jnp.ones(3)
    )
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), node)
    jax.tree.map(lambda _: "text", node)
    return bool(jax.vmap(lambda node: node.x.sum())(many).shape == (2,))


def distinguishes_equal_statics(library: Library) -> bool:
    cls = library.node_class()
    jitted = jax.jit(lambda node: jnp.asarray(node.s))
    jitted(cls(y=jnp.ones(1), x=jnp.ones(1), s=1))
    return bool(jitted(cls(y=jnp.ones(1), x=jnp.ones(1), s=True)).dtype == bool)


def never_stale(library: Library) -> bool:
    scales = [2.0]
    jitted = jax.jit(lambda node: sum(node.s))
    try:
        node = library.node_class()(y=jnp.ones(1), x=jnp.ones(1), s=scales)
    except TypeError:
        return True  # it is rejected, so no result can be old
    jitted(node)
    scales.append(3.0)
    return bool(jitted(node) == 5)


def shares_equal_lambdas(library: Library) -> bool:
    cls, traces = library.node_class(), []

    @jax.jit
    def apply(node: Any) -> Any:
        traces.append(1)
        return node.s(node.x)

    for _ in range(2):
        apply(cls(y=jnp.ones(1), x=jnp.ones(1), s=lambda x: 2 * x))
    return len(traces) == 1


def registers_subclasses(library: Library) -> bool:
    return len(jax.tree.leaves(type("Sub", (library.node_class(),), {})(y=1, x=2))) == 2


def compares_to_a_bool(library: Library) -> bool:
    cls = library.node_class()
    return isinstance(cls(y=jnp.ones(2), x=1) == cls(y=jnp.ones(2), x=1), bool)


def names_key_paths(library: Library) -> bool:
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(library.node_class()(y=1, x=2))
    return jax.tree_util.keystr(path) in {".x", ".y"}


def keeps_field_order(library: Library) -> bool:
    return jax.tree.leaves(library.node_class()(y=1, x=2)) == [1, 2]


def distinguishes_classes(library: Library) -> bool:
    first, second = library.node_class()(y=1, x=2), library.node_class()(y=1, x=2)
    return jax.tree.structure(first) != jax.tree.structure(second)


def is_exportable(library: Library) -> bool:
    node = library.node_class()(y=jnp.ones(2), x=jnp.ones(2))
    return bool(jax.export.export(jax.jit(lambda node: node.x))(node).serialize())


def is_known_to_flax(library: Library) -> bool:
    from flax import serialization

    node = library.node_class()(y=1, x=2)
    return serialization.to_state_dict(node) == {"y": 1, "x": 2}


# The rows of the table, each with its check.
FEATURES: dict[str, Callable[[Library], bool]] = {
    "arguments by position": accepts_positional_arguments,
    "a static string": supports_static_strings,
    "an assignment to a field is rejected": is_frozen,
    "a class that checks its fields in `__post_init__` works in `vmap` and `tree.map`": supports_checks,
    "a static `1`, then `True`: each its own trace": distinguishes_equal_statics,
    "a static list that grows gives no stale result": never_stale,
    "an equal static lambda, created twice: one trace": shares_equal_lambdas,
    "a subclass without a decorator is a node": registers_subclasses,
    "`==` returns a `bool`": compares_to_a_bool,
    "key paths name fields": names_key_paths,
    "leaves in the order of the fields": keeps_field_order,
    "two classes have two treedefs": distinguishes_classes,
    "`jax.export` writes it": is_exportable,
    "`flax.serialization` knows it": is_known_to_flax,
}


def cell(library: Library, feature: Callable[[Library], bool]) -> str:
    statics = feature in {distinguishes_equal_statics, never_stale, shares_equal_lambdas}
    return "no statics" if statics and not library.has_statics else outcome(lambda: feature(library))


def table() -> list[list[str]]:
    """The cells of the page, by rows."""
    section = PAGE.read_text(encoding="utf-8").partition("## Tested behaviour")[2].partition("\n## ")[0]
    lines = section.splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("name", SOURCES)
def test_each_cell_of_the_table_matches_behaviour(name: str) -> None:
    module = {"flax.struct": "flax", "register_dataclass": "jax", "Treewright": "treewright"}.get(name, name)
    if importlib.util.find_spec(module) is None or importlib.util.find_spec("flax") is None:
        pytest.skip(f"needs {module} and flax")
    if name == "simple_pytree" and importlib.metadata.version("simple-pytree") < "0.2":
        pytest.skip("the page is about simple_pytree 0.2, which needs an older Python than this")
    if name in {"flax.struct", "register_dataclass"}:
        skip_before_jax(0, 10)  # older register_dataclass distinguishes the treedefs of two classes
    head, *rows = table()
    column = head.index(name)

    cells = {title: cell(Library(name), feature) for title, feature in FEATURES.items()}

    assert cells == {row[0]: row[column] for row in rows}


def test_only_two_rows_of_the_table_say_no() -> None:
    @pytree_dataclass
    class Decorated:
        x: object
        s: object = static(default="s")

    assert set(table()[0][1:]) == set(SOURCES)
    # With the line to write, and with three lines of the page on flax.struct.
    rejected = {"a subclass without a decorator is a node", "`flax.serialization` knows it"}
    assert {row[-1] for row in table()[1:] if row[0] not in rejected} == {"yes"}
    assert jax.tree.leaves(Decorated(1)) == [1]
