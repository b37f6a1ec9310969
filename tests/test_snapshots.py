"""The public interface and every message, as text files: a change of either is reviewed as a diff.

`UPDATE_SNAPSHOTS=1 make test` writes the files anew.
"""

import dataclasses
import inspect
import os
import re
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treewright
from tests.conftest import skip_before_jax
from tests.public_names import public_names
from treewright import (
    FrozenArray,
    Module,
    Static,
    at,
    combine,
    count,
    edit,
    errors,
    field,
    freeze,
    loop,
    node_at,
    partition,
    pytree_dataclass,
    replace,
    sharding,
    spec_like,
    stack,
    static,
    summary,
    unstack,
)
from treewright.testing import assert_trees_close

FOLDER = Path(__file__).parent / "snapshots"


def compare(name: str, found: str) -> None:
    path = FOLDER / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"{path} differs; UPDATE_SNAPSHOTS=1 writes it anew"


# The public interface


def interface_of(name: str, value: Any) -> list[str]:
    if typing.get_origin(value) is not None:
        return [f"{name} (an annotation)"]  # how Python shows the rest changes with its releases
    if isinstance(value, type) and issubclass(value, Exception):
        return [f"{name}({value.__base__.__name__})"]  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    if not str(getattr(value, "__module__", "")).startswith("treewright"):
        return [f"{name} (of JAX's)"]  # whose parameters change with its releases
    lines = [f"{name}{_parameters(value)}"]
    if isinstance(value, type):
        inner = [attribute for attribute in dir(value) if not attribute.startswith("_")]
        inherited = set(dir(np.ndarray)) if issubclass(value, np.ndarray) else set[str]()
        members = sorted(set(inner) - inherited)
        lines += [f"  {name}.{member}{_parameters(getattr(value, member, None))}" for member in members]
    return lines


def _parameters(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return re.sub(r"<dataclasses\._MISSING_TYPE[^>]*>", "MISSING", str(inspect.Signature(parameters)))


def test_the_public_interface_is_the_one_on_file() -> None:
    lines = [line for name, value in public_names().items() for line in interface_of(name, value)]
    compare("public_api.txt", "".join(f"{line.replace('treewright.', '')}\n" for line in lines))


# Messages. Each case is a function that raises; its name and the message stand on file.


@pytree_dataclass
class Layer:
    kernel: Any
    activation: str = static(default="relu")


class Net(Module):
    layers: Any = ()
    width: int = static(default=1)


def untyped(value: Any) -> Any:
    """The value, for calls that checkers would refuse."""
    return value


def declare(base: Any = object, options: dict[str, Any] | None = None, /, **body: Any) -> Any:
    """Make the class `Example`; `name_type=` in the body annotates the field `name`."""
    annotations = {name[:-5]: body.pop(name) for name in list(body) if name.endswith("_type")}
    made = type(base)(
        "Example", (base,), {"__annotations__": annotations, "__module__": "example", **body}, **(options or {})
    )
    return made if issubclass(made, Module) else pytree_dataclass(made)


def build(init: Callable[[Any], None]) -> Any:
    return declare(Module, kernel_type=Any, bias_type=Any, __init__=init)()


def typo(self: Any) -> None:
    self.kernle = 1.0


def itself(self: Any) -> None:
    self.kernel = self.bias = self


def early(self: Any) -> None:
    _ = self.kernel


def declares(self: Any) -> None:
    self.kernel = static(default=3)


def returns(self: Any) -> str:
    return repr(self)


def failed() -> Any:
    kept: list[Any] = []

    def init(self: Any) -> None:
        kept.append(self)
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        build(init)
    return kept[0]


def assign(node: Any, name: str) -> None:
    setattr(node, name, 1)


def edited(node: Any, deleted: str = "", /, **values: Any) -> None:
    with edit(node) as draft:
        for name, value in values.items():
            setattr(draft, name, value(draft) if callable(value) else value)
        if deleted:
            delattr(draft, deleted)


TREE = Net((Layer(jnp.ones((2, 3))), Layer(1.0)))


class Split(Module):
    kernel: Any = field(sharding=("embed", "mlp"))


@pytree_dataclass
class Derived:
    kernel: Any
    factor: dataclasses.InitVar[int]
    double: Any = field(init=False)

    def __post_init__(self: Any, factor: int) -> None:
        self.double = self.kernel * factor


MESH = jax.sharding.AbstractMesh((2, 4), ("data", "tensor"))


MESSAGES: dict[str, Callable[[], object]] = {
    "option weakref_slot": lambda: pytree_dataclass(weakref_slot=True)(type("Example", (), {})),
    "option frozen": lambda: pytree_dataclass(frozen=False)(type("Example", (), {})),
    "option slots of a module": lambda: declare(Module, {"slots": True}),
    "misspelt option of a module": lambda: declare(Module, {"kwonly": True}),
    "option of a decorated class in the class statement": lambda: type("Example", (Layer,), {}, kw_only=True),
    "no class": lambda: pytree_dataclass(3),  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    "twice": lambda: pytree_dataclass(Layer),
    "slots in the body": lambda: declare(__slots__=("x",)),
    "own setattr": lambda: declare(__setattr__=assign),
    "own tree_flatten": lambda: declare(tree_flatten=assign),
    "reserved field": lambda: declare(tree_flatten_type=Any),
    "no identifier": lambda: declare(**{"a b_type": Any}),
    "array default": lambda: declare(kernel_type=Any, kernel=np.zeros(2)),
    "array in a default": lambda: declare(layer_type=Any, layer=Layer(jnp.ones(3))),
    "array without an annotation": lambda: declare(kernel=jnp.ones(3)),
    "specifier without parentheses": lambda: declare(n_type=int, n=static),
    "specifier without parentheses and annotation": lambda: declare(n=static),
    "specifier with a comma": lambda: declare(n_type=int, n=(static(),)),
    "specifier as an annotation": lambda: declare(n_type=static, n=3),
    "specifier in an annotation": lambda: declare(n_type=Annotated[int, static()]),
    "specifier in init": lambda: build(declares),
    "property of a field's name": lambda: declare(n_type=int, n=property(len)),
    "class as a default": lambda: declare(layer_type=Layer, layer=Layer),
    "value for a field of type Static": lambda: declare(n_type=Static[int])(3),
    "init that returns": lambda: build(untyped(returns)),
    "post init that returns": lambda: declare(n_type=int, __post_init__=returns)(3),
    "check init that returns": lambda: declare(n_type=int, __check_init__=returns)(3),
    "hidden field": lambda: declare(Net, layers=3),
    "kind changed": lambda: declare(Net, width_type=int, width=3),
    "static annotated as an array": lambda: declare(n_type=jax.Array, n=static()),
    "non-default after default": lambda: declare(a_type=Any, a=1, b_type=Any),
    "sharding of a static": lambda: declare(n_type=Any, n=field(sharding=("embed",), metadata={"static": True})),
    "sharding that is a str": lambda: declare(n_type=Any, n=untyped(field)(sharding="embed")),
    "sharding that is a list": lambda: declare(n_type=Any, n=untyped(field)(sharding=["embed"])),
    "sharding lost": lambda: declare(Split, kernel_type=Any, kernel=1.0),
    "stack that is a number": lambda: declare(n_type=Any, n=untyped(field)(stack=3)),
    "no rule": lambda: sharding.partition_specs(Split(jnp.ones((2, 3))), None, {"embde": None, "mlp": None}),
    "split that does not fit": lambda: sharding.shardings(
        [Split(jnp.ones((2, 3))), Split(jnp.ones(4))], MESH, {"embed": "data", "mlp": "tensor"}
    ),
    "mesh axis wanted twice": lambda: sharding.shardings(
        Split(jnp.ones((4, 4))), MESH, {"embed": "tensor", "mlp": "tensor"}
    ),
    "rules that are none": lambda: sharding.shardings(Split(1), MESH, untyped(3)),
    "rule that is none": lambda: sharding.shardings(Split(1), MESH, untyped({"mlp": 3})),
    "mesh that is none": lambda: sharding.shardings(Split(1), untyped(3), {}),
    "on_misfit": lambda: sharding.shardings(Split(1), MESH, {}, on_misfit=untyped("skip")),
    "constrain with too few names": lambda: sharding.constrain(jnp.ones((2, 3)), "data"),
    "derived": lambda: untyped(replace)(Derived(1, 2), double=3, factor=2),
    "InitVar not given": lambda: untyped(replace)(Derived(1, 2), kernel=3),
    "converter": lambda: field(converter=3),  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    "static compare": lambda: static(compare=3),  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    "static list": lambda: Net(width=[64, 64]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "static array": lambda: Net(width=jnp.ones((2, 3))),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "static tracer": lambda: jax.jit(lambda x: Net(width=x))(1.0),
    "static set in a tuple": lambda: Net(width=(1, {2})),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "static without a hash": lambda: Net(width=slice([1])),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "missing and undeclared": lambda: build(typo),
    "contains itself": lambda: build(itself),
    "read too early": lambda: build(early),
    "read after init raised": lambda: failed().kernel,
    "written after init raised": lambda: assign(failed(), "kernel"),
    "flattened after init raised": lambda: failed().tree_flatten(),
    "flattened by jax after init raised": lambda: jax.tree.leaves(failed()),
    "assigned": lambda: assign(Net(), "layers"),
    "assigned to no field": lambda: assign(Net(), "other"),
    "replace an unknown field": lambda: replace(untyped(Net()), layer=1),
    "replace of no node": lambda: replace(untyped(3), x=1),
    "unflatten with other aux": lambda: Net.tree_unflatten(None, ()),
    "unflatten with too few": lambda: Net.tree_unflatten(Net().tree_flatten()[1], ()),
    "compared while traced": lambda: jax.jit(lambda x: Layer(x) == Layer(x + 1))(1.0),
    "hash of an array": lambda: hash(Layer(jnp.ones(2))),
    "frozen mapping": lambda: assign(freeze({}), "x"),
    "frozen array": lambda: assign(freeze(np.zeros(2)), "x"),
    "frozen array of a shape": lambda: FrozenArray((2,)),
    "a limit that decorates and names a function": lambda: treewright.max_traces(1, only="untyped")(untyped),
    "a limit that decorates and counts recompiles": lambda: treewright.max_traces(1, recompiles=0)(untyped),
    "at a field that is not there": lambda: at(TREE, lambda net: net.layers[0].kernle),
    "at an index that is not there": lambda: at(TREE, ".layers[7]"),
    "at an entry of an array": lambda: at(TREE, lambda net: net.layers[0].kernel[0]),
    "at a pattern that leads nowhere": lambda: at(TREE, "bais"),
    "at a name of several places": lambda: at(TREE, "kernel"),
    "at with a predicate that is never true": lambda: at(TREE, lambda path, value: False),
    "at with no path": lambda: at(TREE, "layers 0"),
    "at with no function": lambda: at(TREE, 3),  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    "at with no places": lambda: at(TREE, lambda net: 3),
    "at with a comparison": lambda: at(TREE, lambda net: net.width == 1),
    "at one place twice": lambda: at(TREE, lambda net: (net.width, net.width)),
    "at a place inside another": lambda: at(TREE, lambda net: (net.layers, net.layers[0])),
    "at with another structure": lambda: at(TREE, lambda net: (net.layers, net.width)).set(3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "edit of no node": lambda: edited(3),
    "edit of an unknown field": lambda: edited(Net(), layer=1),
    "edit that deletes": lambda: edited(Net(), "width"),
    "edit used too early": lambda: edited(Net(), layers=jax.tree.leaves),
    "edit into itself": lambda: edited(Net(), layers=lambda draft: [draft]),
    "spec for a static": lambda: spec_like(TREE, 0, {"width": 1}),
    "spec with no prefix": lambda: spec_like([1, 2], [3]),
    "mask of no bools": lambda: partition([1, 2], [True, 1]),
    "combine of two leaves": lambda: combine({"w": 1}, {"w": 2}),
    "stack of nothing": lambda: stack([]),
    "stack of shapes": lambda: stack([Layer(jnp.ones(2)), Layer(jnp.ones(3))]),
    "stack of statics": lambda: stack([Layer(1.0), Layer(1.0, "gelu")]),
    "stack of functions": lambda: stack([Layer(len), Layer(len)]),
    "unstack of lengths": lambda: unstack([jnp.ones(2), jnp.ones(3)]),
    "unstack of no leaves": lambda: unstack(Net()),
    "node at no place": lambda: node_at(jnp.ones(2), 2),
    "count by nothing": lambda: count(1, by="path"),  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    "summary without depth": lambda: summary(1, depth=0),
    "trees that are not close": lambda: assert_trees_close(Layer(jnp.ones(2)), Layer(jnp.arange(2.0), "gelu")),
    "loop that changes its state": lambda: loop(lambda net, x: (replace(net, layers=x), x), Net(1.0, 2))([1, 2]),
    "loop without an output": lambda: loop(untyped(lambda net: net), Net(1.0, 2))(),
    "loop over a text": lambda: loop(lambda net: (net, None), Net(("relu",), 2)),
    "loop inside of jit": lambda: jax.jit(loop(lambda x, y: (x + y, x), jnp.ones(2)))(1.0),
    "treedefs that differ": lambda: jax.tree.map(lambda a, b: a, Layer(1.0), Layer(1.0, "gelu")),
}


def message_of(case: Callable[[], object]) -> str:
    try:
        case()
    except (TypeError, ValueError, AttributeError, AssertionError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    raise RuntimeError("nothing was raised")


def test_every_message_is_the_one_on_file() -> None:
    skip_before_jax(0, 10, 2)
    parts = []
    for name, case in MESSAGES.items():
        message = re.sub(r"0x[0-9a-f]+", "0x...", message_of(case)).replace(f"{__name__}.", "")
        lines = [part for line in message.splitlines() for part in textwrap.wrap(line, 110, break_on_hyphens=False)]
        parts.append("\n".join([f"[{name}]", *lines]))
    compare("messages.txt", "\n\n".join(parts) + "\n")


def test_a_case_that_raises_nothing_fails() -> None:
    with pytest.raises(RuntimeError, match="nothing was raised"):
        message_of(lambda: None)


@pytest.mark.parametrize("cls", [value for value in vars(errors).values() if isinstance(value, type)])
def test_every_error_explains_itself_in_its_docstring(cls: type) -> None:
    assert cls.__doc__
    assert len(cls.__doc__.split()) > 10


def test_fields_of_examples_are_dataclass_fields() -> None:
    assert [f.name for f in dataclasses.fields(Layer)] == ["kernel", "activation"]
