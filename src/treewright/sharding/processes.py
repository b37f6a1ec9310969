"""Whether all processes hold the same tree: as texts that are the same in each, compared."""

import dataclasses
import enum
import functools
import hashlib
import json
import re
import types
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from treewright._jax import is_key_dtype, untyped_jax
from treewright._nodes.node import finished_pair
from treewright._nodes.spec import spec_of
from treewright._trees.paths import Path, entries_of, field_key, path_text
from treewright._values import reach
from treewright._values.classes import class_of, import_path
from treewright._values.text import excerpts, first_difference, short_dtype
from treewright.errors import ProcessMismatchError

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = frozenset({str, int, bool, bytes, float, complex, types.NoneType, types.EllipsisType})


def described(tree: object) -> dict[str, str]:
    """What stands at each place of a tree: classes of nodes and containers, statics, shapes and dtypes of leaves.

    Not the values of arrays, and no statics that are local to a process.
    """
    found: dict[str, str] = {}
    _describe(tree, (), found)
    return found


def _describe(part: Any, path: Path, found: dict[str, str]) -> None:
    place = path_text(path) or "the tree itself"
    entries = entries_of(part)
    if entries is None:
        found[place] = _leaf_text(part)
        return
    found[place] = "None" if part is None else _name(class_of(part))
    if hasattr(class_of(part), "__node_spec__"):
        values = finished_pair(part)[1].values
        for field, value in zip(spec_of(part).statics, values, strict=True):
            if not field.local:
                found[f"{path_text((*path, field_key(field.name)))} (static)"] = description(value)
    for key, child in entries:
        _describe(child, (*path, key), found)


def _leaf_text(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not isinstance(getattr(leaf, "shape", None), tuple):
        return description(leaf)
    shape: tuple[Any, ...] = leaf.shape
    weak = " (weakly typed)" if getattr(leaf, "weak_type", False) else ""
    sharding = getattr(leaf, "sharding", None)
    split = ""
    if isinstance(sharding, NamedSharding):
        sizes: Mapping[str, int] = sharding.mesh.shape
        split = f" split by {sharding.spec} on {dict(sizes)}"
    return f"{short_dtype(dtype)}[{','.join(map(str, shape))}]{weak}{split}"


def description(value: object) -> str:
    """A text that is equal in all processes for values that do the same, and tells apart those that do not.

    Objects of other libraries' classes count by their `repr` without addresses.
    """
    return _Description().of(value)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}".removeprefix("builtins.")


class _Description:
    """One walk through a value. `inside` holds what is being described, so that a cycle ends."""

    def __init__(self) -> None:
        self.inside: list[int] = []

    def of(self, value: Any) -> str:
        if class_of(value) in _PLAIN:
            return repr(value)
        if id(value) in self.inside:
            return f"<level {self.inside.index(id(value))}>"
        self.inside.append(id(value))
        try:
            return next(method(self, value) for matches, method in _KINDS if matches(value))
        finally:
            self.inside.pop()

    def items(self, values: Any) -> str:
        return ", ".join(map(self.of, values))

    def named(self, pairs: Any) -> str:
        return ", ".join(f"{name}={self.of(value)}" for name, value in pairs)

    def name(self, value: Any) -> str:
        return _name(value)

    def member(self, value: Any) -> str:
        return f"{_name(class_of(value))}.{value.name or value.value}"

    def array(self, value: Any) -> str:
        shown = f"{short_dtype(value.dtype)}[{','.join(map(str, value.shape))}]"
        if not getattr(value, "is_fully_addressable", True):
            return shown
        plain = jax.random.key_data(value) if is_key_dtype(value.dtype) else value
        return f"{shown}#{_digest(np.asarray(plain).tobytes())}"

    def node(self, value: Any) -> str:
        fields = (field for field in spec_of(value).fields if not field.local)
        pair = finished_pair(value)
        return f"{_name(class_of(value))}({self.named((field.name, field.value_in(pair)) for field in fields)})"

    def dataclass(self, value: Any) -> str:
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return f"{_name(class_of(value))}({self.named(fields)})"

    def partial(self, value: functools.partial[Any]) -> str:
        return f"partial({self.items((value.func, *value.args))}, {self.named(value.keywords.items())})"

    def method(self, value: Any) -> str:
        return f"{self.of(value.__self__)}.{value.__func__.__name__}"

    def function(self, value: types.FunctionType) -> str:
        read = {name: item for name, item in reach.read_by(value).items() if not isinstance(item, types.ModuleType)}
        held = self.named((reach.held_by(value) | read).items())
        return f"{_name(value)}#{_digest(self.code(value.__code__).encode())}({held})"

    def code(self, code: types.CodeType) -> str:
        constants = (self.code(one) if isinstance(one, types.CodeType) else self.of(one) for one in code.co_consts)
        return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {' '.join(constants)}"

    def wrapper(self, value: Any) -> str:
        return f"{_name(class_of(value))}({self.of(value.__wrapped__)})"

    def mapping(self, value: Any) -> str:
        items = ", ".join(f"{self.of(key)}: {self.of(item)}" for key, item in value.items())
        return f"{_name(class_of(value))}({items})"

    def members(self, value: Any) -> str:
        return f"{_name(class_of(value))}({', '.join(sorted(map(self.of, value)))})"

    def sequence(self, value: Any) -> str:
        names = getattr(value, "_fields", None)
        inner = self.items(value) if names is None else self.named(zip(names, value, strict=True))
        return f"{_name(class_of(value))}({inner})"

    def other(self, value: Any) -> str:
        return f"{_name(class_of(value))}: {_ADDRESS.sub('', repr(value))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _is_kind(*kinds: type[Any]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


# The first that fits describes the value.
_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[_Description, Any], str]], ...] = (
    (_is_kind(type), _Description.name),
    (_is_kind(enum.Enum), _Description.member),
    (_is_kind(np.generic), _Description.other),
    (_is_kind(np.ndarray, jax.Array), _Description.array),
    (lambda value: hasattr(class_of(value), "__node_spec__"), _Description.node),
    (lambda value: dataclasses.is_dataclass(class_of(value)), _Description.dataclass),
    (_is_kind(functools.partial), _Description.partial),
    (lambda value: hasattr(value, "__func__") and hasattr(value, "__self__"), _Description.method),
    (lambda value: callable(value) and import_path(value) is not None, _Description.name),
    (_is_kind(types.FunctionType), _Description.function),
    (lambda value: callable(value) and hasattr(value, "__wrapped__"), _Description.wrapper),
    (_is_kind(Mapping), _Description.mapping),
    (_is_kind(set, frozenset), _Description.members),
    (_is_kind(tuple, list), _Description.sequence),
    (lambda _: True, _Description.other),
)


_SHOWN = 20  # differences in one message
_WIDTH = 90  # characters of a value
_ABSENT = "nothing"


def assert_same_on_all_processes(tree: object) -> None:
    """Return if all processes hold the same tree but for the values of arrays, and raise in every process if not.

    Classes, statics, containers, shapes, dtypes and shardings are compared. Statics that `static(local=True)` declares
    are left out. Call it in every process before the first step: a different static is else silent, or lets a
    collective wait without end. An abstract tree will do, from `jax.eval_shape` or `abstract_state`.

    Functions that can't be imported are compared by their code and what they captured, objects of other classes by
    their `repr`.

    Args:
        tree: Any pytree.

    Raises:
        ProcessMismatchError: If two processes differ. The message has each place, and what each process has there.

    Examples:
        >>> from treewright.sharding import assert_same_on_all_processes
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        ...     log_name: str = static(default="", local=True)
        >>> assert_same_on_all_processes(Layer(jnp.ones(2), log_name=f"process {jax.process_index()}"))
    """
    if untyped_jax.process_count() == 1:
        return
    mine = described(tree)
    everyones = _everyones(json.dumps(mine).encode())
    if everyones is None:
        return
    trees: list[Mapping[str, str]] = [json.loads(one) for one in everyones]
    places = list(dict.fromkeys(place for one in trees for place in one))
    differing = {place: [one.get(place, _ABSENT) for one in trees] for place in places}
    raise ProcessMismatchError(
        _message(
            "The processes hold different trees:",
            [(place, values) for place, values in differing.items() if len({*values}) > 1],
            "Give every process the same. A static that may differ, since no program depends on it, is declared "
            "static(local=True).",
        )
    )


def assert_same_program_on_all_processes(lowered: jax.stages.Lowered) -> None:
    """Return if all processes have lowered the same program, and raise in every process if not.

    This finds what no tree shows: a global variable, an environment variable, the order of a set. Programs that differ
    would wait for each other's collectives, or compute something that no process meant.

    Args:
        lowered: What `jax.jit(step).lower(...)` gives. It can be compiled afterwards, so nothing is traced twice.

    Raises:
        ProcessMismatchError: If two processes differ. The message has the first line of the program that does, and how
            it reads in each process.

    Examples:
        >>> from treewright.sharding import assert_same_program_on_all_processes
        >>> lowered = jax.jit(lambda x: x * 2).lower(jnp.ones(2))
        >>> assert_same_program_on_all_processes(lowered)
        >>> step = lowered.compile()
        >>> step(jnp.ones(2)).tolist()
        [2.0, 2.0]
    """
    if untyped_jax.process_count() == 1:
        return
    lines = lowered.as_text().splitlines()
    digests = [hashlib.sha256(line.encode()).digest()[:8] for line in lines]
    everyones = _everyones(b"".join(digests))
    if everyones is None:
        return
    first = first_difference(everyones) // 8
    line = lines[first].strip() if first < len(lines) else "the end of the program"
    values = [one.decode() for one in _gathered(line.encode())]
    raise ProcessMismatchError(
        _message(
            "The processes have lowered different programs:",
            [(f"line {first + 1}", values)],
            "Something that the function reads differs: a global or environment variable, the order of a set, the "
            "version of a library, a static(local=True) that the program does depend on.",
        )
    )


def _everyones(mine: bytes) -> list[bytes] | None:
    """What each process has, in order; None if all have the same."""
    digest = np.frombuffer(hashlib.sha256(mine).digest(), np.uint8)
    digests = _process_allgather(digest)
    return None if (digests == digests[0]).all() else _gathered(mine)


def _gathered(mine: bytes) -> list[bytes]:
    """The bytes of each process, in order."""
    packed = np.frombuffer(zlib.compress(mine), np.uint8)
    sizes = _process_allgather(np.asarray(len(packed), np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(packed)] = packed
    rows = _process_allgather(padded)
    return [zlib.decompress(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def _process_allgather(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    from jax.experimental import multihost_utils

    gathered: Any = multihost_utils.process_allgather(value)
    return np.asarray(gathered)


def _message(title: str, differing: Sequence[tuple[str, Sequence[str]]], cure: str) -> str:
    lines = [title]
    for place, values in differing[:_SHOWN]:
        shown = dict(zip(values, excerpts(values, _WIDTH), strict=True))
        lines.append(f"  {place}")
        lines += [f"    {_names(_holders(values, value))}: {shown[value]}" for value in dict.fromkeys(values)]
    if len(differing) > _SHOWN:
        lines.append(f"  and {len(differing) - _SHOWN} places more")
    return "\n".join([*lines, cure])


def _holders(values: Sequence[str], value: str) -> list[int]:
    return [process for process, one in enumerate(values) if one == value]


def _names(processes: Iterable[int]) -> str:
    """`process 3`, or `processes 0-2, 4`."""
    ranges: list[list[int]] = []
    for process in processes:
        if ranges and ranges[-1][-1] == process - 1:
            ranges[-1][1:] = [process]
        else:
            ranges.append([process])
    plural = "es" if len(ranges) > 1 or len(ranges[0]) > 1 else ""
    return f"process{plural} {', '.join('-'.join(map(str, one)) for one in ranges)}"
