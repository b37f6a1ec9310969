"""What a compiled program does: how its arguments and results are split, what it donates, gathers, moves and holds."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from treewright._core.functions import public
from treewright._core.jax_private import jax_trees, path_text, untyped_jax
from treewright._core.text import in_html, shape_text, table
from treewright._processes import kept_arguments, output_shardings
from treewright._trees.sizes import bytes_in
from treewright.sharding.folding import folded
from treewright.sharding.hlo import Collective, collectives_in, donated_parameters, shapes_in
from treewright.sharding.report import bytes_text, spec_text

_ROOT = re.compile(r"args\[\d+\]|\w+")


@public("treewright.sharding")
@dataclasses.dataclass(frozen=True, slots=True)
class ProgramArray:
    """An argument or a result of a compiled program.

    Attributes:
        path: Where it is: `args[0].params.up`, or `.params.up` in the result.
        array: Its dtype and shape, as text.
        spec: How it is split; None where it is on one device.
        nbytes: Its bytes.
        device_nbytes: Its bytes on each device.
        donated: Whether it was given up, and whether a result has taken its memory: `"yes"`, `"unused"` or `"no"`. Of
            a ref that the program changes `"in place"`.
    """

    path: str
    array: str
    spec: PartitionSpec | None
    nbytes: int
    device_nbytes: int
    donated: str = "no"


@public("treewright.sharding")
@dataclasses.dataclass(frozen=True, slots=True)
class ProgramReport:
    """What a compiled program does on each device. `print` it for a table.

    Attributes:
        mesh: The axes of its mesh and how many devices each has; empty for one device.
        arguments: The leaves of its arguments.
        results: The leaves of its results.
        collectives: What devices send to each other, most bytes first.
        whole: The paths of arguments and results that are split, and of whose shape the program holds an array whole.
        temporary_nbytes: The bytes on each device besides arguments and results; None where JAX does not tell.
    """

    mesh: Mapping[str, int]
    arguments: tuple[ProgramArray, ...]
    results: tuple[ProgramArray, ...]
    collectives: tuple[Collective, ...]
    whole: tuple[str, ...]
    temporary_nbytes: int | None

    @property
    def not_donated(self) -> tuple[str, ...]:
        """The paths of arguments that were given up in vain: no result has taken their memory."""
        return tuple(one.path for one in self.arguments if one.donated == "unused")

    @property
    def moved_nbytes(self) -> int:
        """The bytes of all collectives of one run."""
        return sum(one.nbytes * one.count for one in self.collectives)

    def __str__(self) -> str:
        lines: list[str] = []
        for name, arrays in (("argument", self.arguments), ("result", self.results)):
            head = (name, "array", "split over", "bytes", "on a device", "donated")
            lines += table([head, *_rows(arrays)], right=("bytes", "on a device"))
        if self.collectives:
            titles = ("collective", "arrays", "over", "bytes", "times")
            rows = [_collective_row(one) for one in self.collectives]
            lines += table([titles, *rows], right=("bytes", "times"))
        lines += [f"held whole on a device: {path}" for path in self.whole]
        lines += [f"donated in vain: {path}" for path in self.not_donated]
        axes = ", ".join(f"{name} {size}" for name, size in self.mesh.items()) or "one device"
        temporary = "" if self.temporary_nbytes is None else f", {bytes_text(self.temporary_nbytes)} besides"
        held = sum(one.device_nbytes for one in self.arguments)
        lines.append(
            f"{axes}: {bytes_text(held)} of arguments on a device{temporary}; {bytes_text(self.moved_nbytes)} moved"
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return in_html(str(self))


def _rows(arrays: Sequence[ProgramArray]) -> list[tuple[str, ...]]:
    """Lines for some arrays; those of each argument are folded by themselves."""
    rows: list[tuple[str, ...]] = []
    for root, group in itertools.groupby(arrays, key=lambda one: _root(one.path)):
        part = list(group)
        for fold in folded([(one.path[len(root) :], (one.array, one.spec, one.donated)) for one in part]):
            first, count = part[fold.members[0]], len(fold.members)
            spec = "one device" if first.spec is None else spec_text(first.spec)
            sizes = bytes_text(first.nbytes * count), bytes_text(first.device_nbytes * count)
            rows.append((f"{root}{fold}", f"{first.array}{f' x {count}' * (count > 1)}", spec, *sizes, first.donated))
    return rows


def _root(path: str) -> str:
    """`args[0]` or the name of an argument; nothing in a path of the result."""
    found = _ROOT.match(path)
    return found[0] if found else ""


def _collective_row(one: Collective) -> tuple[str, ...]:
    few = ", ".join(one.arrays[:2]) + f" and {len(one.arrays) - 2} more" * (len(one.arrays) > 2)
    axes = "?" if one.axes is None else " x ".join(one.axes)
    return one.kind, few, axes, bytes_text(one.nbytes), str(one.count)


def program_report(function: Callable[..., object], /, *args: Any, **kwargs: Any) -> ProgramReport:
    """What a jitted function does on each device, read off the program that is compiled for these arguments.

    It says what one reads HLO for: whether gradients come back split, whether donated memory is used, which collectives
    run over which mesh axes and how many bytes each moves, and whether a device ever holds a whole array of which it
    keeps a part. Nothing runs. The program is that of the machine that is here: another backend may choose others.

    Args:
        function: A function that `jax.jit` has made; others are jitted for it.
        *args: Its arguments. `jax.ShapeDtypeStruct`s with shardings will do, as `abstract_state` makes them.
        **kwargs: More of them.

    Examples:
        >>> from treewright.sharding import program_report
        >>> mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> x = jax.device_put(jnp.ones((8, 16)), jax.NamedSharding(mesh, jax.P("data")))
        >>> report = program_report(jax.jit(lambda x: x.sum(0)), x)
        >>> [(one.kind, one.arrays, one.axes, one.nbytes) for one in report.collectives]
        [('all-reduce', ('f32[16]',), ('data',), 64)]
        >>> report.arguments[0].spec, report.results[0].spec
        (P('data',), P())
    """
    jitted: Any = function if hasattr(function, "lower") else untyped_jax.jit(function)
    lowered = jitted.lower(*args, **kwargs)
    compiled = lowered.compile()
    program = compiled.as_text()
    taken = jax_trees.tree_leaves_with_path(lowered.args_info)
    arguments = _arguments(taken, compiled, donated_parameters(program))
    placed = output_shardings(compiled)  # those of refs follow those of the results
    stage = lowered if len(placed) == lowered.out_tree.num_leaves else jitted.trace(*args, **kwargs)
    given = jax_trees.tree_leaves_with_path(stage.out_info)
    results = [
        _array(path_text(path) or "the result", info, sharding, "no")
        for (path, info), sharding in zip(given, placed, strict=False)
    ]
    meshes = [
        one.mesh for one in (*jax.tree.leaves(compiled.input_shardings), *placed) if isinstance(one, NamedSharding)
    ]
    mesh: dict[str, int] = dict(max(meshes, key=lambda one: one.size).shape) if meshes else {}
    shapes = shapes_in(program)
    every = zip((*arguments, *results), (*taken, *given), strict=True)
    memory = compiled.memory_analysis()
    return ProgramReport(
        mesh,
        tuple(arguments),
        tuple(results),
        collectives_in(program, mesh),
        tuple(one.path for one, (_, info) in every if one.device_nbytes < one.nbytes and info.shape in shapes),
        None if memory is None else int(memory.temp_size_in_bytes),
    )


def _arguments(entries: Sequence[Any], compiled: Any, taken: frozenset[int]) -> list[ProgramArray]:
    shardings: list[Any] = jax.tree.leaves(compiled.input_shardings, is_leaf=lambda one: one is None)
    numbers = {place: number for number, place in enumerate(kept_arguments(compiled, len(entries)))}
    found: list[ProgramArray] = []
    for place, (path, info) in enumerate(entries):
        kind, name, *rest = path
        root = f"args{name}" if kind.idx == 0 else str(name.key)
        is_taken = numbers.get(place) in taken
        used = ("yes" if is_taken else "unused") if info.donated else "in place" if is_taken else "no"  # as refs are
        found.append(_array(path_text(tuple(rest), root), info, shardings[place], used))
    return found


def _array(path: str, info: Any, sharding: Any, donated: str) -> ProgramArray:
    shape = tuple(info.shape)
    nbytes = bytes_in(untyped_jax.ShapeDtypeStruct(shape, info.dtype))
    kept = math.prod(sharding.shard_shape(shape)) if sharding is not None else math.prod(shape)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else None
    on_a_device = nbytes * kept // max(1, math.prod(shape))
    return ProgramArray(path, shape_text(info.dtype, shape), spec, nbytes, on_a_device, donated)
