"""The libraries that the benchmark compares, and the class each of them makes for a number of children.

Each library is a few lines of text that follow its own documentation: imports, decorators, bases and the way it spells
a static field. A class is made from them by a `class` statement, as a user would write it.
"""

import dataclasses
import importlib.metadata
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

STATICS = {"activation": "relu", "width": 64}

Role = Literal["builtin", "plain", "peer", "ours"]


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """How one library declares and constructs a node.

    `builtin` libraries have no class, only an expression; `plain` is no pytree and serves as a base for construction;
    `peer` are the libraries that Treewright is held against; `ours` is Treewright.
    """

    name: str
    role: Role
    distribution: str | None = None
    imports: str = ""
    decorator: str = ""
    bases: str = ""
    static: str | None = None
    keywords: bool = False

    def construction(self, children: int) -> str:
        """The expression that makes one node from the local names `c0`, `c1`, ..., `activation` and `width`."""
        names = [f"c{i}" for i in range(children)]
        if self.name == "tuple":
            return f"({', '.join(names)},)"
        if self.name == "dict":
            return "{" + ", ".join(f"'{name}': {name}" for name in names) + "}"
        if self.static is not None:
            names += STATICS
        return f"Node({', '.join(f'{name}={name}' if self.keywords else name for name in names)})"

    def source(self, children: int) -> str:
        """A module with `make()`, which makes the class anew, and `build(c0, c1, ...)`, which makes one node."""
        arguments = ", ".join(f"c{i}" for i in range(children))
        statics = [f"{name} = {value!r}" for name, value in STATICS.items()]
        build = [f"def build({arguments}):", f"    return {self.construction(children)}"]
        if self.role == "builtin":
            return "\n".join([*statics, *build, ""])
        fields = [f"c{i}: jax.Array" for i in range(children)]
        if self.static is not None:
            fields += [self.static.format(name=name, type=type(value).__name__) for name, value in STATICS.items()]
        decorators = [f"    {line}" for line in self.decorator.splitlines()]
        head = f"    class Node({self.bases}):" if self.bases else "    class Node:"
        make = ["def make():", *decorators, head, *(f"        {line}" for line in fields), "    return Node"]
        return "\n".join(["import jax", self.imports, *statics, *make, "Node = make()", *build, ""])


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """One library's class for one number of children."""

    library: Library
    children: int
    module: types.ModuleType

    @property
    def make(self) -> Callable[[], type]:
        """Makes the class anew by its `class` statement."""
        make: Callable[[], type] = self.module.make
        return make

    def tree(self, leaves: Sequence[jax.Array]) -> list[Any]:
        """A list of nodes that hold `leaves` in order."""
        n = self.children
        return [self.module.build(*leaves[i : i + n]) for i in range(0, len(leaves), n)]


LIBRARIES = (
    Library("tuple", "builtin"),
    Library("dict", "builtin"),
    Library(
        "frozen dataclass",
        "plain",
        imports="import dataclasses",
        decorator="@dataclasses.dataclass(frozen=True)",
        static="{name}: {type}",
    ),
    Library(
        "register_dataclass",
        "peer",
        "jax",
        imports="import dataclasses",
        decorator="@jax.tree_util.register_dataclass\n@dataclasses.dataclass(frozen=True)",
        static="{name}: {type} = dataclasses.field(metadata=dict(static=True))",
    ),
    Library(
        "flax.struct",
        "peer",
        "flax",
        imports="from flax import struct",
        decorator="@struct.dataclass",
        static="{name}: {type} = struct.field(pytree_node=False)",
    ),
    Library(
        "equinox",
        "peer",
        "equinox",
        imports="import equinox as eqx",
        bases="eqx.Module",
        static="{name}: {type} = eqx.field(static=True)",
    ),
    # chex has no static fields, and its constructor takes keywords only.
    Library("chex", "peer", "chex", imports="import chex", decorator="@chex.dataclass(frozen=True)", keywords=True),
    Library(
        "jax_dataclasses",
        "peer",
        "jax_dataclasses",
        imports="import jax_dataclasses as jdc",
        decorator="@jdc.pytree_dataclass",
        static="{name}: jdc.Static[{type}]",
    ),
    # Releases before 0.2 have no decorator of their own and document the one of the standard library.
    Library(
        "simple_pytree",
        "peer",
        "simple_pytree",
        imports=(
            "import dataclasses, simple_pytree\ndataclass = getattr(simple_pytree, 'dataclass', dataclasses.dataclass)"
        ),
        decorator="@dataclass",
        bases="simple_pytree.Pytree",
        static="{name}: {type} = simple_pytree.static_field()",
    ),
    Library(
        "penzai",
        "peer",
        "penzai",
        imports="import dataclasses\nfrom penzai import pz",
        decorator="@pz.pytree_dataclass",
        bases="pz.Struct",
        static="{name}: {type} = dataclasses.field(metadata={{'pytree_node': False}})",
    ),
    # sepes marks values, not fields, as static: a field masks what it is given and unmasks what is read of it. Releases
    # before 0.12 call that freeze.
    Library(
        "sepes",
        "peer",
        "sepes",
        imports=(
            "import sepes\n"
            "if hasattr(sepes, 'freeze'):\n"
            "    mask, unmask = sepes.freeze, sepes.unfreeze\n"
            "else:\n"
            "    mask, unmask = lambda value: sepes.tree_mask(value, lambda _: True), sepes.tree_unmask"
        ),
        decorator="@sepes.autoinit",
        bases="sepes.TreeClass",
        static="{name}: {type} = sepes.field(on_setattr=[mask], on_getattr=[unmask])",
    ),
    # Its classes are not frozen; `jarp.frozen` makes those that are. It needs Python 3.12.
    Library(
        "jarp",
        "peer",
        "jarp",
        imports="import jarp",
        decorator="@jarp.define",
        static="{name}: {type} = jarp.static()",
    ),
    Library(
        "treewright.pytree_dataclass",
        "ours",
        "treewright",
        imports="from treewright import pytree_dataclass, static",
        decorator="@pytree_dataclass",
        static="{name}: {type} = static()",
    ),
    Library(
        "treewright.Module",
        "ours",
        "treewright",
        imports="from treewright import Module, static",
        bases="Module",
        static="{name}: {type} = static()",
    ),
)


def nodes_of(library: Library, children: int) -> Nodes:
    """The class of `library` with `children` children, made in a module of its own.

    Raises:
        Exception: Whatever the library raises when it is missing or refuses the class.
    """
    name = f"_benchmark_{library.name.replace('.', '_').replace(' ', '_')}_{children}"
    module = types.ModuleType(name)
    # dataclasses and typing look a class's module up by name.
    sys.modules[name] = module
    exec(compile(library.source(children), f"<{name}>", "exec"), module.__dict__)  # noqa: S102 - text from this file
    return Nodes(library, children, module)


def problem(library: Library) -> str | None:
    """Why `library` cannot be measured here; None if it can.

    It has to make a class whose leaves are its children and which comes back from unflatten as itself.
    """
    if library.role == "plain":
        return None
    leaves = [jax.numpy.float32(0), jax.numpy.float32(1)]
    try:
        nodes = nodes_of(library, 2)
        node = nodes.tree(leaves)[0]
        found, treedef = jax.tree_util.tree_flatten(node)
        back = jax.tree_util.tree_unflatten(treedef, found)
    except Exception as error:  # noqa: BLE001 - a broken peer must not stop the others
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if [id(leaf) for leaf in found] != [id(leaf) for leaf in leaves]:
        return f"its leaves are {found}, not its two children"
    return None if type(back) is type(node) else f"unflatten gives a {type(back).__name__}"


def version(distribution: str) -> str:
    """The installed version of `distribution`, or "not installed as a package"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"
