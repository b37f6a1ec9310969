"""Making a tree where it will live: no host and no device ever holds all of it."""

import contextlib
import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from treewright._collector import uncollected
from treewright._core.functions import class_of
from treewright._core.jax_private import Path, jax_trees, path_text, process_count, untyped_jax
from treewright._core.jax_refs import is_ref
from treewright._core.portable import portable_text
from treewright._core.text import first_of, first_text, text
from treewright._processes import equation_setting, some_equations
from treewright._trees.level import leaf_type_of
from treewright.errors import ShardingError, ShardingWarning, warn_user
from treewright.sharding.hlo import shapes_in
from treewright.sharding.processes import TIMEOUT, compare, described, program_texts, versions
from treewright.sharding.specs import (
    AnyMesh,
    MeshRules,
    OnMisfit,
    Rules,
    by_spec,
    fitted_leaves,
    partition_spec,
    sizes_of,
)

T = TypeVar("T")
_SMALL = 2**16  # bytes of an array, up to which every device may hold it whole while the others are made
_WHOLE = """\
Random keys of the implementation 'rbg' give whole arrays, as do sorts (jax.random.permutation)
and QR decompositions (orthogonal initialisers). Arrays that a function captures are whole in its
program. Where that takes too much memory, use keys of 'threefry2x32', initialisers that make
each number by itself, and arguments for what was captured."""


def sharded_init(
    fn: Callable[..., T],
    /,
    *args: Any,
    mesh: Mesh,
    rules: Rules,
    on_misfit: OnMisfit = "error",
    timeout_seconds: float = TIMEOUT,
    **kwargs: Any,
) -> T:
    """What `fn(*args, **kwargs)` gives, made in parts: each device computes and holds only its own part.

    `fn` is traced once. Each array of more than 64 KiB is made by a program of its own, and arrays that are made in the
    same way by one program: 80 equal layers compile as one. Its random numbers are those of a run without a mesh, but
    for rounding. It may make statics that compare by identity, such as optimisers.

    With several processes, each calls this with the same arguments, and before anything is made they compare the values
    of the arrays among them, the tree that is to be made, and the programs that make it.

    Args:
        fn: A function or class. Its result must have arrays at all leaves, or numbers, which become arrays.
        *args: Its arguments. Arrays and random keys in them are traced; all else, such as sizes and names, is passed as
            it is.
        mesh: The mesh, with Auto or Explicit axes. The result is on it, whatever mesh is set.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.
        timeout_seconds: How long to wait for the other processes.
        **kwargs: More arguments of `fn`, as in `args`. One that has the name of an argument above goes into a
            `functools.partial`.

    Raises:
        ProcessMismatchError: If processes would make different trees, or some have not come in time.
        ShardingError: As for `partition_specs`, or if `fn` returns a ref: give `from_refs(...)`.
        TypeError: As for `partition_specs`, if `mesh` is abstract, which `abstract_state` takes, or if `fn` returns
            something that is neither an array nor a number.

    Warns:
        ShardingWarning: If each device computes all of an array of which it keeps a part. Random keys of the
            implementation `rbg`, sorting and QR decompositions do that.

    Examples:
        >>> from treewright.sharding import sharded_init
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        ...     def __init__(self, inputs, outputs, *, key):
        ...         self.kernel = jax.random.normal(key, (inputs, outputs))
        >>> mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"))
        >>> rules = {"embed": "fsdp", "mlp": "tensor"}
        >>> layer = sharded_init(Layer, 6, 4, key=jax.random.key(0), mesh=mesh, rules=rules)
        >>> layer.kernel.shape, layer.kernel.addressable_shards[0].data.shape
        ((6, 4), (3, 2))
    """
    _require_devices(mesh)
    traced = _traced(fn, (args, kwargs), mesh, rules, on_misfit)
    with jax.set_mesh(_with_auto_axes(mesh)):
        made: T = _made(traced, timeout_seconds)
    return made


def abstract_state(
    fn: Callable[..., T], /, *args: Any, mesh: AnyMesh, rules: Rules, on_misfit: OnMisfit = "error", **kwargs: Any
) -> T:
    """What `sharded_init` would give, with a `jax.ShapeDtypeStruct` that has its sharding for each array.

    Nothing is computed. It is the target for a restore: `treewright.checkpoint.load(path, like=...)` and Orbax put
    each part of an array on the device that is to have it.

    Args:
        fn: As for `sharded_init`.
        *args: As for `sharded_init`.
        mesh: As for `sharded_init`, or a `jax.sharding.AbstractMesh` to plan for machines that are not here. It need
            not be the mesh that the arrays were on when they were saved.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.
        **kwargs: As for `sharded_init`.

    Raises:
        ShardingError: As for `partition_specs`, or if `fn` returns a ref: give `from_refs(...)`.
        TypeError: As for `partition_specs`.

    Examples:
        >>> from treewright.sharding import abstract_state
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        >>> mesh = jax.sharding.AbstractMesh((4,), ("tensor",))
        >>> layer = abstract_state(lambda: Layer(jnp.ones((6, 4))), mesh=mesh, rules={"embed": None, "mlp": "tensor"})
        >>> layer.kernel.sharding.spec
        P(None, 'tensor')
    """
    traced = _traced(fn, (args, kwargs), mesh, rules, on_misfit)
    result: T = traced.treedef.unflatten(traced.leaves)
    return result


def _require_devices(mesh: object) -> None:
    if isinstance(mesh, AbstractMesh):
        raise TypeError(
            f"sharded_init makes arrays, and {mesh} has no devices to hold them. abstract_state plans for such a mesh; "
            f"jax.make_mesh makes one of devices."
        )


class _Traced(NamedTuple):
    """A function, traced: the arrays that it takes, each with the name of its argument, what it gives, and how."""

    arrays: list[Any]
    names: list[str]
    treedef: Any
    leaves: list[jax.ShapeDtypeStruct]
    paths: list[Path]
    jaxpr: Any


class _Part(NamedTuple):
    """Some equations of a function, to be a program.

    Attributes:
        inputs: The variables that it takes.
        leaves: The numbers of the function's results that it gives, first.
        more: The variables that it gives besides, which other parts take.
        run: The program, as a function of arrays.
        key: Equal for two parts that do the same with their inputs.
    """

    inputs: tuple[Any, ...]
    leaves: tuple[int, ...]
    more: tuple[Any, ...]
    run: Callable[..., list[Any]]
    key: Hashable


def _argument_name(fn: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """`key`, or `args[0]` where the function does not tell the names of its parameters."""
    kind, place, *rest = path
    if kind.idx == 1:
        return path_text(tuple(rest), str(place.key))
    try:
        names = [*inspect.signature(fn).parameters]
    except (TypeError, ValueError):
        names = list[str]()
    index: int = place.idx
    name = names[index] if index < len(names) else f"args{place}"
    return path_text(tuple(rest), name)


@uncollected()
def _traced(
    fn: Callable[..., Any], arguments: tuple[Any, dict[str, Any]], mesh: AnyMesh, rules: Rules, on_misfit: OnMisfit
) -> _Traced:
    """The function, traced once. Its leaves and not its tree, which may hold statics that equal only themselves."""
    sizes, structures = sizes_of(mesh), list[Any]()
    taken, structure = jax_trees.tree_flatten_with_path(arguments)
    places = [place for place, (_, leaf) in enumerate(taken) if isinstance(leaf, jax.Array | np.ndarray)]
    arrays = [_untyped(taken[place][1]) for place in places]

    def leaves_of(arrays: list[Any]) -> list[Any]:
        filled = dict(enumerate(leaf for _, leaf in taken)) | dict(zip(places, arrays, strict=True))
        args, kwargs = structure.unflatten(filled.values())
        tree = fn(*args, **kwargs)
        entries, treedef = jax_trees.tree_flatten_with_path(tree)
        for path, leaf in entries:
            if is_ref(leaf):
                raise ShardingError(
                    f"{path_text(path, class_of(tree).__qualname__)} is a ref, and the function is traced, which "
                    f"returns no refs. Return arrays, from_refs(...), and make refs of the result: "
                    f"to_refs(result, where=...)."
                )
            if leaf_type_of(leaf).aval is None:
                raise TypeError(
                    f"{path_text(path, class_of(tree).__qualname__)} is {first_text(leaf)}, and the leaves of what is "
                    f"made are arrays or numbers. Make it a static, or leave it out."
                )
        structures.append(treedef)
        return [leaf for _, leaf in entries]

    with _mesh_for_tracing(_with_auto_axes(mesh)):
        jaxpr: Any = untyped_jax.make_jaxpr(leaves_of)(arrays)
    (treedef,) = structures
    abstract = treedef.unflatten(
        untyped_jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in jaxpr.out_avals
    )
    fitted = fitted_leaves(abstract, MeshRules(rules, sizes), on_misfit, whole=True)
    placed = by_spec(mesh, fitted)
    leaves = [_abstract(declared.value, placed[fit.spec]) for declared, fit in fitted]
    names = [_argument_name(fn, taken[place][0]) for place in places]
    return _Traced(arrays, names, treedef, leaves, [declared.path for declared, _ in fitted], jaxpr)


def _mesh_for_tracing(mesh: AnyMesh) -> contextlib.AbstractContextManager[object]:
    """The mesh that `fn` sees. JAX can't set an abstract one where another is set: then `fn` sees that."""
    if isinstance(mesh, Mesh):
        return jax.set_mesh(mesh)
    before: Mesh = jax.sharding.get_mesh()
    return jax.sharding.use_abstract_mesh(mesh) if before.empty else jax.set_mesh(_with_auto_axes(before))


def _lowered(part: _Part, arrays: Mapping[Any, Any], leaves: Sequence[Any]) -> Any:
    """The program of a part, under the mesh that is set. What it takes from another part every device has."""
    everywhere = NamedSharding(jax.sharding.get_mesh(), partition_spec())
    outs = [*(leaves[place].sharding for place in part.leaves), *(everywhere for _ in part.more)]
    inputs = [arrays[one] if one in arrays else _abstract(one.aval, everywhere) for one in part.inputs]
    return untyped_jax.jit(part.run, out_shardings=outs).lower(*inputs)


def _made(traced: _Traced, timeout_seconds: float) -> Any:
    """What the function gives, made under the mesh that is set once all processes agree."""
    parts = _parts_of(traced.jaxpr, [leaf.sharding for leaf in traced.leaves])
    arrays: dict[Any, Any] = dict(zip(traced.jaxpr.jaxpr.invars, traced.arrays, strict=True))
    # One program is for arguments that lie alike.
    keys = [(part.key, *(getattr(arrays.get(one), "sharding", None) for one in part.inputs)) for part in parts]
    distinct = dict(zip(keys, parts, strict=True))
    lowered = {key: _lowered(part, arrays, traced.leaves) for key, part in distinct.items()}
    if process_count() > 1:
        _compare(traced, [*lowered.values()], timeout_seconds)
    compiled = {key: program.compile() for key, program in lowered.items()}
    programs = [compiled[key] for key in keys]
    _warn_of_whole_arrays(zip(parts[1:], programs[1:], strict=True), traced)
    made: dict[int, Any] = {}
    for part, program in zip(parts, programs, strict=True):
        # One after the other: two programs at work would hold the random bits of both.
        outputs = untyped_jax.block_until_ready(program(*(arrays[one] for one in part.inputs)))
        made.update(zip(part.leaves, outputs, strict=False))
        arrays.update(zip(part.more, outputs[len(part.leaves) :], strict=True))
    return traced.treedef.unflatten(made[place] for place in range(len(traced.leaves)))


def _abstract(aval: Any, sharding: NamedSharding) -> Any:
    return untyped_jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


def _compare(traced: _Traced, programs: list[Any], timeout_seconds: float) -> None:
    """Whether all processes are about to make the same.

    Of arguments that are not arrays nothing is compared but what becomes of them: one may be the name for a log.
    """
    modules = set[str]()
    pairs = zip(traced.names, traced.arrays, strict=True)
    texts = {f"argument {name}": portable_text(array, exact=True) for name, array in pairs}
    texts |= described(traced.treedef.unflatten(traced.leaves), modules) | versions(modules) | program_texts(programs)
    compare("sharded_init", "The processes would make different trees:", texts, timeout_seconds)


def _warn_of_whole_arrays(compiled: Iterable[tuple[_Part, Any]], traced: _Traced) -> None:
    """Warn where a program computes a whole array on each device that keeps a part of it."""
    lines: list[str] = []
    largest: dict[int, int] = {}  # how many numbers each program computes on a device at once
    for part, program in compiled:
        if id(program) not in largest:
            largest[id(program)] = max(map(math.prod, shapes_in(program.as_text(), computed=True)), default=0)
        for place in part.leaves:
            leaf: Any = traced.leaves[place]
            whole, kept = (math.prod(shape) for shape in (leaf.shape, leaf.sharding.shard_shape(leaf.shape)))
            if kept < whole <= largest[id(program)]:
                lines.append(f"{path_text(traced.paths[place])}, {text(leaf)}, of which it keeps 1/{whole // kept}")
    if lines:
        shown = "\n  ".join(["Each device computes all of these arrays, to keep a part:", *first_of(lines)])
        warn_user(f"{shown}\n{_WHOLE}", ShardingWarning)


def _with_auto_axes(mesh: AnyMesh) -> Any:
    """A mesh of the same devices that puts no shardings into types.

    Under Explicit axes random numbers are typed as replicated, so every device would make whole arrays: for a
    1024 x 1024 normal 16.8 MB beside the 0.5 MB that it keeps, instead of 1.6 MB.
    """
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def _untyped(array: Any) -> Any:
    """The same array on a mesh with Auto axes. Nothing is copied."""
    placed = getattr(array, "sharding", None)
    if not isinstance(placed, NamedSharding) or not isinstance(placed.mesh, Mesh):
        return array
    return untyped_jax.device_put(array, NamedSharding(_with_auto_axes(placed.mesh), placed.spec))


# A traced function taken apart: one program for what is small, and one for each kind of large array


def _parts_of(jaxpr: Any, placed: Sequence[Hashable]) -> list[_Part]:
    """A function in parts: first one that makes all that is small, then others, which take what that one gives.

    Equations that depend on a large array stand together with it, and so do large arrays of which one is made from
    another. What no result depends on is left out. `placed` says of each result where it is to be: those in unequal
    places are not made by equal programs.
    """
    whole: Any = jaxpr.jaxpr
    early: list[Any] = []
    group_of: dict[Any, list[Any]] = {}  # by variable the equations that one of them gives: a list for each group
    for equation in _needed(whole):
        variables = _variables_in(equation.invars)
        joined = _distinct(group_of[variable] for variable in variables if variable in group_of)
        if not joined and not (equation.outvars and any(map(_is_large, (*variables, *equation.outvars)))):
            early.append(equation)
            continue
        group = max(joined, key=len, default=list[Any]())
        for other in joined:
            if other is not group:
                group += other
                group_of.update((variable, group) for moved in other for variable in moved.outvars)
        group.append(equation)
        group_of.update(dict.fromkeys(equation.outvars, group))

    leaves_of: dict[int, list[int]] = {}
    for place, variable in enumerate(whole.outvars):
        group = early if _is_literal(variable) else group_of.get(variable, early)
        leaves_of.setdefault(id(group), []).append(place)
    parts = [
        _part(jaxpr, placed, group, inputs=_inputs_of(group), leaves=leaves_of.get(id(group), []))
        for group in _distinct(group_of.values())
    ]
    made_early = {variable for equation in early for variable in equation.outvars}
    between = dict.fromkeys(variable for part in parts for variable in part.inputs if variable in made_early)
    return [_part(jaxpr, placed, early, inputs=whole.invars, leaves=leaves_of.get(id(early), []), more=between), *parts]


def _part(
    jaxpr: Any,
    placed: Sequence[Hashable],
    equations: Sequence[Any],
    *,
    inputs: Iterable[Any],
    leaves: Sequence[int],
    more: Iterable[Any] = (),
) -> _Part:
    whole: Any = jaxpr.jaxpr
    constants = {*whole.constvars}
    inputs = tuple(variable for variable in inputs if variable not in constants)
    outputs = [*(whole.outvars[place] for place in leaves), *more]
    run = some_equations(jaxpr, equations, inputs, outputs)
    numbers = {variable: number for number, variable in enumerate(inputs)}
    steps: list[Hashable] = [tuple(variable.aval for variable in inputs)]
    for equation in equations:
        taken = tuple(_operand(one, numbers) for one in equation.invars)
        numbers.update({variable: len(numbers) + place for place, variable in enumerate(equation.outvars)})
        given = tuple(variable.aval for variable in equation.outvars)
        setting = equation_setting(equation)
        steps.append((equation.primitive, _comparable(tuple(equation.params.items())), taken, given, setting))
    ends = tuple(_operand(one, numbers) for one in outputs)
    key = (tuple(steps), ends, tuple(placed[place] for place in leaves))
    return _Part(inputs, tuple(leaves), tuple(more), run, key)


def _needed(whole: Any) -> list[Any]:
    """The equations that some result depends on, or that do something besides."""
    wanted = {*_variables_in(whole.outvars)}
    kept: list[Any] = []
    for equation in reversed(whole.eqns):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(_variables_in(equation.invars))
    return kept[::-1]


def _inputs_of(equations: Iterable[Any]) -> tuple[Any, ...]:
    """The variables that equations take and do not give, in the order in which they take them."""
    given: set[Any] = set()
    taken: dict[Any, None] = {}
    for equation in equations:
        taken.update(dict.fromkeys(one for one in _variables_in(equation.invars) if one not in given))
        given.update(equation.outvars)
    return tuple(taken)


def _distinct(groups: Iterable[list[Any]]) -> list[list[Any]]:
    return [*{id(group): group for group in groups}.values()]


def _variables_in(operands: Iterable[Any]) -> list[Any]:
    return [one for one in operands if not _is_literal(one)]


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def _is_large(variable: Any) -> bool:
    aval: Any = variable.aval
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return math.prod(getattr(aval, "shape", ())) * int(itemsize) > _SMALL


def _operand(variable: Any, numbers: dict[Any, int]) -> Hashable:
    if _is_literal(variable):
        value = np.asarray(variable.val)
        return (variable.aval, str(value.dtype), value.tobytes())
    number: Hashable = numbers.get(variable, variable)  # a constant is itself
    return number


def _comparable(value: Any) -> Hashable:
    """Equal only for what is the same setting of an equation; what can't be compared equals itself alone."""
    kind = class_of(value)
    if kind in {tuple, list}:
        return (kind, *map(_comparable, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (kind, value)
