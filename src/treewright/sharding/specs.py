"""Trees of `PartitionSpec`s and `NamedSharding`s: the names on the fields, met with rules and a mesh."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from treewright._jax import Path, jax_trees, path_text
from treewright._nodes.fields import AxisNames, names_problem
from treewright._nodes.node import finished_pair
from treewright._nodes.spec import FieldSpec, spec_of
from treewright._trees.level import is_node
from treewright._values.text import text
from treewright.errors import ShardingError
from treewright.sharding.rules import Fit, Resolver, Rules

T = TypeVar("T")
AnyMesh: TypeAlias = Mesh | AbstractMesh
OnMisfit: TypeAlias = Literal["error", "replicate"]

_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray)
_SHOWN = 20  # leaves in one message


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A leaf, where it is, and what its field says: the names of leading axes that hold stacks, and of the others."""

    path: Path
    leaf: Any
    stacks: tuple[str, ...]
    names: AxisNames | None


def places_in(tree: object) -> list[Place]:
    """The leaves of a tree in JAX's order.

    Raises:
        ShardingError: If a function that is to give names gives something else.
    """
    found: list[Place] = []
    _collect(tree, (), (), None, found)
    return found


def _collect(part: Any, path: Path, stacks: tuple[str, ...], names: AxisNames | None, found: list[Place]) -> None:
    if isinstance(part, _ARRAYS):
        found.append(Place(path, part, stacks, names))
    elif is_node(part):
        spec, (children, _) = spec_of(part), finished_pair(part)
        for field, key, child in zip(spec.children, spec.keys, children, strict=True):
            own, stack = _declared(field, part, path)
            _collect(child, (*path, key), stacks if stack is None else (*stacks, stack), own, found)
    else:
        inner: list[tuple[Path, Any]]
        inner, _ = jax_trees.tree_flatten_with_path(part, is_leaf=is_node)
        for steps, item in inner:
            if is_node(item):
                _collect(item, (*path, *steps), stacks, None, found)
            else:
                found.append(Place((*path, *steps), item, stacks, names))


def _declared(field: FieldSpec, node: Any, path: Path) -> tuple[AxisNames | None, str | None]:
    """The names and the stack of a field, which a class may compute."""
    names, stack = field.sharding, field.stack
    if callable(names):
        names = names(node)
        problem = None if names is None else names_problem(names)
        if problem is not None:
            raise ShardingError(
                f"{_place(path)}.{field.name}: the function in sharding= gave {names!r}, which {problem}."
            )
    if callable(stack):
        given: Any = stack(node)
        if given is not None and not isinstance(given, str):
            raise ShardingError(
                f"{_place(path)}.{field.name}: the function in stack= gave {given!r}, which is no name of an axis and "
                f"not None."
            )
        stack = given
    return names, stack


def _place(path: Path) -> str:
    return path_text(path) or "The tree itself"


def shape_of(leaf: Any) -> tuple[int, ...]:
    """The shape of an array, live, abstract or traced; of anything else, that of a number."""
    found: Any = getattr(leaf, "shape", ())
    shape: tuple[int, ...] = found if issubclass(type(found), tuple) else ()  # not a method of that name
    return shape


def fitted(tree: object, resolver: Resolver, on_misfit: OnMisfit) -> list[tuple[Place, Fit]]:
    """The leaves of a tree in JAX's order, each with how it is split.

    Raises:
        ShardingError: If a leaf can't be split as the rules say, unless it is to be whole then. The message lists all.
    """
    options: Any = on_misfit
    if options not in {"error", "replicate"}:
        raise ValueError(f'on_misfit= is "error" or "replicate", got {on_misfit!r}.')
    found = [(place, resolver.fit(place.stacks, place.names, shape_of(place.leaf))) for place in places_in(tree)]
    wrong = [
        (place, fit.unknown or fit.misfits)
        for place, fit in found
        if fit.unknown or (fit.misfits and on_misfit == "error")
    ]
    if wrong:
        raise ShardingError(_message(wrong, len(found)))
    return found


def _message(wrong: list[tuple[Place, tuple[str, ...]]], count: int) -> str:
    lines = [f"{len(wrong)} of {count} leaves can't be split as the rules say:"]
    for place, problems in wrong[:_SHOWN]:
        lines.append(f"  {_place(place.path)}, {text(place.leaf)}: {'; '.join(dict.fromkeys(problems))}")
    if len(wrong) > _SHOWN:
        lines.append(f"  and {len(wrong) - _SHOWN} more")
    if any(problem.startswith("no rule") for _, problems in wrong for problem in problems):
        lines.append("A name needs a rule; None is the rule for an axis that is not split.")
    else:
        lines.append('on_misfit="replicate" keeps such an axis, or array, whole on every device.')
    return "\n".join(lines)


def partition_specs(tree: T, rules: Rules, *, mesh: AnyMesh | None = None, on_misfit: OnMisfit = "error") -> T:
    """A tree of the same treedef with a `PartitionSpec` for each leaf, by the names of its field.

    A leaf whose field has no names is replicated. So is what stands in no node.

    Args:
        tree: A node, or any other tree with nodes in it: live, traced, or abstract as `jax.eval_shape` gives it.
            An optimiser's state is one: its moments are trees of the classes that they belong to.
        rules: The mesh axes for each name: one, a tuple of several, or None.
        mesh: If given, mesh axes that it lacks, or that have one device, are dropped, and lengths are checked.
        on_misfit: What to do if a length does not divide by the devices, two axes want one mesh axis, or names do not
            count the axes of the array, as in optimisers that factor their moments. `"error"`, or `"replicate"`: keep
            that axis whole, or where the count is wrong, the array. A name without a rule is always an error.

    Raises:
        ShardingError: If leaves can't be split as the rules say; the message lists all of them by path.
        TypeError: If the rules are none.

    Examples:
        >>> from treewright.sharding import partition_specs
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        ...     bias: jax.Array = field(sharding=("mlp",))
        >>> layer = Layer(jnp.ones((4, 8)), jnp.ones(8))
        >>> specs = partition_specs(layer, {"embed": None, "mlp": "tensor"})
        >>> print(specs.kernel, specs.bias)
        P(None, 'tensor') P('tensor',)
    """
    found = fitted(tree, Resolver(rules, None if mesh is None else sizes_of(mesh)), on_misfit)
    specs: T = jax.tree.structure(tree).unflatten(fit.spec for _, fit in found)
    return specs


def shardings(tree: T, mesh: AnyMesh, rules: Rules, *, on_misfit: OnMisfit = "error") -> T:
    """A tree of the same treedef with a `NamedSharding` for each leaf: for `jax.device_put`, `jit` and checkpoints.

    Mesh axes that the rules name and the mesh lacks are dropped, as are those of one device: one set of rules serves
    a laptop and a pod.

    Args:
        tree: As for `partition_specs`.
        mesh: A mesh, or a `jax.sharding.AbstractMesh` to plan for machines that are not here.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: If the rules are none.

    Examples:
        >>> from treewright.sharding import shardings
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        >>> mesh = jax.make_mesh((2,), ("tensor",))
        >>> layer = Layer(jnp.ones((4, 8)))
        >>> layer = jax.device_put(layer, shardings(layer, mesh, {"embed": "fsdp", "mlp": "tensor"}))
        >>> layer.kernel.sharding.spec, layer.kernel.addressable_shards[0].data.shape
        (P(None, 'tensor'), (4, 4))
    """
    found = fitted(tree, Resolver(rules, sizes_of(mesh)), on_misfit)
    by_spec: dict[PartitionSpec, NamedSharding] = {fit.spec: NamedSharding(mesh, fit.spec) for _, fit in found}
    placed: T = jax.tree.structure(tree).unflatten(by_spec[fit.spec] for _, fit in found)
    return placed


def sizes_of(mesh: AnyMesh) -> Mapping[str, int]:
    """How many devices each axis of a mesh has.

    Raises:
        TypeError: If it is no mesh.
    """
    given: Any = mesh
    if not isinstance(given, Mesh | AbstractMesh):
        raise TypeError(f"mesh= is a jax.sharding.Mesh or AbstractMesh, got {given!r}.")
    shape: Mapping[str, int] = mesh.shape
    return shape
