"""How checkers understand each pytree library: `python -m tests.typing.study` prints the table of docs/types.md.

One program for each library, with the same lines: at a line that ends in `# right` a checker must report nothing, at
one that ends in `# wrong` it must report an error. Each library is written in the spelling that checkers understand
best. A share of 100 % means that all right lines pass, with the types that `assert_type` names, and all wrong ones are
found.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.typing.checkers import CHECKERS, errors

JAX = (
    "from jax import grad, jit, value_and_grad, vmap\nfrom jax.lax import scan\nfrom jax.tree import map as tree_map\n"
)
STANDARD = "from dataclasses import field, replace\n"


@dataclasses.dataclass(frozen=True)
class Library:
    """How a library spells a class (`decorator`, `base`, `options`) and its fields, and which features it lacks.

    In `field`, `{type}` is the type of a field that is not static. In `static`, it is the field's type, `{default}` its
    default with a comma before it, `{value}` the same as a right-hand side. Lines that name something in `lacks` are
    left out.
    """

    imports: str
    decorator: str = ""
    base: str = ""
    options: str = ""
    field: str = "{type}"
    static: str = ""
    lacks: tuple[str, ...] = ()


OURS = "from treewright import Module, field, pytree_dataclass, replace, static\n"
TYPED = "from treewright.typed import grad, jit, scan, tree_map, value_and_grad, vmap\n"
METADATA = "{type} = field(metadata=dict(static=True){default})"
LIBRARIES = {
    "treewright.pytree_dataclass": Library(OURS + TYPED, "@pytree_dataclass", "", static="{type} = static({given})"),
    "treewright.Module, frozen=True": Library(
        OURS + TYPED, "", "Module", "frozen=True", static="{type} = static({given})"
    ),
    "treewright.Module, Final fields": Library(
        OURS + TYPED + "from typing import Final\n",
        "",
        "Module",
        field="Final[{type}]",
        static="Final[{type}] = static({given})",
    ),
    "treewright.Module": Library(OURS + TYPED, "", "Module", static="{type} = static({given})"),
    "jax_dataclasses": Library(
        "import jax_dataclasses as jdc\nfrom jax_dataclasses import field, jit, replace\n" + JAX.replace("jit, ", ""),
        "@jdc.pytree_dataclass(frozen=True)",
        static="jdc.Static[{type}]{value}",
    ),
    "equinox.Module": Library(
        "import equinox as eqx\nfrom dataclasses import replace\nfrom equinox import field, filter_grad as grad\n"
        "from equinox import filter_jit as jit, filter_value_and_grad as value_and_grad, filter_vmap as vmap\n"
        "from jax.lax import scan\nfrom jax.tree import map as tree_map\n",
        "",
        "eqx.Module",
        static="{type} = field(static=True{default})",
        lacks=("argnums", "nonsense=1)  #"),
    ),
    "jax.tree_util.register_dataclass": Library(
        STANDARD + JAX + "from jax.tree_util import register_dataclass\n",
        "@register_dataclass\n@dataclasses.dataclass(frozen=True)",
        static=METADATA,
    ),
    "flax.struct.dataclass": Library(
        JAX + "from dataclasses import replace\nfrom flax import struct\nfrom flax.struct import field\n",
        "@struct.dataclass(frozen=True)",
        static="{type} = field(pytree_node=False{default})",
    ),
    "simple_pytree": Library(
        STANDARD + JAX + "from simple_pytree import Pytree, static_field\n",
        "@dataclasses.dataclass(frozen=True)",
        "Pytree",
        static="{type} = static_field({given})",
    ),
    "chex.dataclass(frozen=True)": Library(
        STANDARD + JAX + "import chex\n",
        "@chex.dataclass(frozen=True)",
        lacks=("static(", "positional", "name="),
    ),
}

PROGRAM = """
import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar, assert_type

import jax
import jax.numpy as jnp

T = TypeVar("T")


node Layer:
    kernel: jax.Array
    bias: jax.Array
    scale: float = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.scale * (x @ self.kernel) + self.bias


node Named:
    kernel: jax.Array
    name: str = static()
    sizes: tuple[int, ...] = static(default=())
    function: Callable[[jax.Array], jax.Array] = static(default=jnp.tanh)


node Net:
    first: Layer
    rest: list[Layer]

    @jit
    def step(self, x: jax.Array) -> jax.Array:
        return self.first(x)


node Wide(Layer):
    extra: float = 0.0


node Box(Generic[T]):
    value: T
    count: int = 1


def loss(layer: Layer, x: jax.Array) -> jax.Array:
    return jnp.sum(layer(x))


def loss_and_size(layer: Layer, x: jax.Array) -> tuple[jax.Array, int]:
    return jnp.sum(layer(x)), x.size


def walk(layer: Layer, x: jax.Array) -> tuple[Layer, jax.Array]:
    return layer, layer(x)


def construction(layer: Layer, net: Net, wide: Wide, x: jax.Array) -> None:
    assert_type(Layer(kernel=x, bias=x), Layer)  # right
    Layer(x, x, 2.0)  # right positional
    Layer(kernel="no", bias=x)  # wrong
    Layer(kernel=x)  # wrong
    Layer(kernel=x, bias=x, nope=1)  # wrong
    Layer(x, x, 1.0, 2.0)  # wrong positional
    assert_type(layer.kernel, jax.Array)  # right
    assert_type(layer.scale, float)  # right
    print(layer.kernle)  # wrong
    assert_type(layer(x), jax.Array)  # right
    layer(x, 3)  # wrong
    assert_type(net.rest[0].kernel, jax.Array)  # right
    Net(first=x, rest=[])  # wrong
    Wide(kernel=x, bias=x, extra=2.0)  # right
    Wide(kernel=x, extra=2.0)  # wrong
    assert_type(wide.kernel, jax.Array)  # right
    assert_type(Box(value=3), Box[int])  # right
    assert_type(Box(value="a").value, str)  # right
    Box[int](value="no")  # wrong


def statics(named: Named, x: jax.Array) -> None:
    print(named)
    Named(kernel=x, name="a")  # right name=
    Named(kernel=x)  # wrong name=
    Named(kernel=x, name=3)  # wrong name=
    assert_type(named.name, str)  # right name=
    assert_type(named.function(x), jax.Array)  # right name=


def frozen(layer: Layer, wide: Wide, box: Box[int], x: jax.Array) -> None:
    layer.kernel = x  # wrong
    layer.scale += 1.0  # wrong
    wide.kernel = x  # wrong
    box.value = 4  # wrong
    layer.nope = x  # wrong


def copies(layer: Layer, wide: Wide, box: Box[str], x: jax.Array) -> None:
    assert_type(replace(layer, scale=2.0), Layer)  # right
    assert_type(replace(wide, scale=2.0), Wide)  # right
    assert_type(replace(box, count=2), Box[str])  # right
    replace(layer, nope=2.0)  # wrong


def transforms(layer: Layer, net: Net, x: jax.Array) -> None:
    assert_type(jit(loss)(layer, x), jax.Array)  # right
    jit(loss)(layer)  # wrong
    jit(loss)("no", x)  # wrong
    jit(loss).lower(layer, x)  # right
    assert_type(net.step(x), jax.Array)  # right
    net.step(x, 3)  # wrong
    assert_type(grad(loss)(layer, x), Layer)  # right
    grad(loss)(layer)  # wrong
    assert_type(grad(loss, argnums=1)(layer, x), jax.Array)  # right
    assert_type(value_and_grad(loss)(layer, x), tuple[jax.Array, Layer])  # right
    assert_type(value_and_grad(loss_and_size, has_aux=True)(layer, x), tuple[tuple[jax.Array, int], Layer])  # right
    assert_type(jit(grad(loss))(layer, x), Layer)  # right
    assert_type(vmap(loss, in_axes=(None, 0))(layer, x), jax.Array)  # right
    assert_type(scan(walk, layer, x), tuple[Layer, jax.Array])  # right
    assert_type(tree_map(lambda leaf: 2 * leaf, layer), Layer)  # right


node Fields:
    a: float = field(default=0.1)  # right
    b: float = field(default="no")  # wrong
    c: tuple[int, ...] = field(default_factory=tuple)  # right
    d: float = field(default=0.1, nonsense=1)  # wrong
    e: float = "no"  # wrong


node Statics:
    a: str | None = static(default=None)  # right
    b: float = static(default="no")  # wrong
    c: tuple[int, ...] = static(default_factory=tuple)  # right
    d: list[int] = static(default_factory=list[int])  # wrong
    e: jax.Array = static(default=jnp.ones(3))  # wrong
    f: float = static(default=0.1, nonsense=1)  # wrong


node Order:
    a: float = 0.1
    b: jax.Array  # wrong
"""


def head(library: Library, name: str, inside: str) -> str:
    """The class statement; `inside` are bases in parentheses, if any."""
    bases = [inside] if inside and not inside.startswith("Generic") else [library.base, inside]
    listed = ", ".join(part for part in (*bases, library.options) if part)
    return f"{library.decorator}\nclass {name}({listed}):" if listed else f"{library.decorator}\nclass {name}:"


def static_field(library: Library, start: str, kind: str, given: str) -> str:
    """A static field; `given` are the arguments of `static(...)`."""
    value = given.removeprefix("default=")
    value = (
        f" = {value}" if given.startswith("default=") and ", " not in value else f" = field({given})" if given else ""
    )
    return start + library.static.format(type=kind, given=given, default=f", {given}" if given else "", value=value)


def program_of(library: Library) -> str:
    """The program in the spelling of a library."""
    lines = [line for line in PROGRAM.splitlines() if not any(lack in line for lack in library.lacks)]
    text = "\n".join(lines).replace("import jax.numpy as jnp\n", f"import jax.numpy as jnp\n{library.imports}", 1)
    text = re.sub(r"(?<=node Statics:\n)(?!    )", "    pass\n", text)
    text = re.sub(r"(?m)^node (\w+)(?:\((.*)\))?:", lambda found: head(library, found[1], found[2] or ""), text)
    children = re.compile(r"(?m)^(    \w+: )([^=#\n]+?)(?= = (?!static)|  #|$)")
    text = children.sub(lambda found: found[1] + library.field.format(type=found[2]), text)
    statics = re.compile(r"(?m)^(    \w+: )(.*) = static\((.*)\)(?=$|  # )")
    return statics.sub(lambda found: static_field(library, found[1], found[2], found[3]), text)


def share(checker: str, library: Library, folder: Path, *, show: bool = False) -> float:
    """The share of marked lines that a checker understands; with `show`, print the others."""
    folder.mkdir()
    program = program_of(library)
    found = errors(checker, program, folder, mode="strict")
    marked = [
        (number, line) for number, line in enumerate(program.splitlines(), 1) if re.search("# (right|wrong)", line)
    ]
    missed = [(number, line) for number, line in marked if (number in found) != ("# wrong" in line)]
    for number, line in missed if show else ():
        print(f"{checker}: {line.strip()}\n  {found.get(number, 'nothing')}")
    return 1 - len(missed) / len(marked)


def main(show: str = "") -> None:
    """Print the table; with a library, also each line that a checker does not understand."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        asked = {
            (name, checker): pool.submit(share, checker, library, Path(folder, f"{index}-{checker}"), show=name == show)
            for index, (name, library) in enumerate(LIBRARIES.items())
            for checker in CHECKERS
        }
        print(f"| library | {' | '.join(CHECKERS)} |")
        print(f"|---|{'---:|' * len(CHECKERS)}")
        for name in LIBRARIES:
            print(f"| {name} | {' | '.join(f'{asked[name, checker].result():.0%}' for checker in CHECKERS)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
