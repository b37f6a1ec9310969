"""`summary`: a table of all that is in a tree."""

import dataclasses
import functools
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from jax.core import Tracer

from treewright._jax import Path, jax_trees, path_text
from treewright._jax_refs import is_ref
from treewright._nodes.node import finished_pair
from treewright._trees.level import child_of, is_node
from treewright._trees.sizes import Item, aliases_in, bytes_in, elements_in, items_of
from treewright._values.reach import class_of
from treewright._values.text import array_text, short_dtype, table, text

if TYPE_CHECKING:
    from rich.table import Table

_VALUE_LENGTH = 40  # characters of a static, or of another value that is not an array
_HEAD = ("path", "class", "kind", "shape", "dtype", "count", "bytes", "sharding")
_NUMBERS = frozenset({"count", "bytes"})


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of a summary.

    Args:
        path: The place; with ` = ` and the value if that is not an array, or with the other place of a tied array.
        class_name: The class of the node that it belongs to; where a `depth` ends the table, of what stands there.
        kind: `"child"`, `"static"`, `"buffer"` or `"tied"`.
        shape: As `[64,10]`; empty for what is not an array.
        dtype: As `f32`, or `f32 (ref)` for a ref; empty for what is not an array.
        count: How many numbers it holds.
        nbytes: How many bytes they take.
        sharding: The partition spec, if it is spread over a mesh.
    """

    path: str
    class_name: str
    kind: str
    shape: str = ""
    dtype: str = ""
    count: int = 0
    nbytes: int = 0
    sharding: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the columns."""
        sizes = (f"{self.count:,}", f"{self.nbytes:,}") if self.dtype else ("", "")
        return (self.path, self.class_name, self.kind, self.shape, self.dtype, *sizes, self.sharding)


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """The rows of a summary and its last line."""

    rows: tuple[Row, ...]
    total: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Tree:
    """A tree as it is now, whatever happens to its lists and dicts."""

    leaves: list[Any]
    treedef: Any
    depth: int | None

    def table(self) -> _Table:
        """What a summary shows of it."""
        return _table(self.treedef.unflatten(self.leaves), self.depth)


class Summary:
    """What `summary` gives. `print` shows a table: rich's in a terminal where rich is installed, else the plain one.

    The table is made when it is first looked at. Until then the leaves are kept.

    Attributes:
        title: The class of the tree.
    """

    def __init__(self, tree: object, depth: int | None) -> None:
        self.title: str = class_of(tree).__qualname__
        if is_node(tree):
            finished_pair(tree)  # which refuses one whose __init__ has not returned, in our own words
        leaves, treedef = jax_trees.tree_flatten(tree)
        self._held: _Tree | _Table = _Tree(leaves, treedef, depth)
        if any(isinstance(leaf, Tracer) for leaf in leaves):  # which must not outlive their trace
            self._made()

    def _made(self) -> _Table:
        held = self._held
        if isinstance(held, _Tree):
            held = self._held = held.table()
        return held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Summary) and (self.title, self._made()) == (other.title, other._made())

    def __hash__(self) -> int:
        return hash((self.title, self._made()))

    @property
    def rows(self) -> tuple[Row, ...]:
        """One for each leaf and each static, or for what stands at the `depth`."""
        return self._made().rows

    @property
    def total(self) -> str:
        """The last line."""
        return self._made().total

    def __str__(self) -> str:
        return self._by_rich() or self.plain if _in_terminal() else self.plain

    def __repr__(self) -> str:
        return str(self)

    @property
    def plain(self) -> str:
        """The table in plain text, the same everywhere: for logs and files."""
        return "\n".join([self.title, *table(self._cells(), right=_NUMBERS, rule=True), self.total])

    def _by_rich(self) -> str | None:
        try:
            from rich.console import Console
        except ImportError:
            return None
        console = Console()
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip("\n")

    def _cells(self) -> list[tuple[str, ...]]:
        """The head and the rows; without the last column where no row fills it."""
        cells = [_HEAD, *(row.cells() for row in self.rows)]
        return cells if any(row.sharding for row in self.rows) else [line[:-1] for line in cells]

    def __rich__(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        head, *lines = self._cells()
        table = Table(title=self.title, caption=self.total, title_justify="left", caption_justify="left")
        for name in head:
            table.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
        styles = {"static": "dim", "buffer": "cyan", "tied": "magenta"}
        for row, line in zip(self.rows, lines, strict=True):
            table.add_row(*map(Text, line), style=styles.get(row.kind))
        return table


def _in_terminal() -> bool:
    return bool(getattr(sys.stdout, "isatty", bool)())  # programs without a console have no stdout


def summary(tree: object, *, depth: int | None = None) -> Summary:
    """A table of what is in a tree: each leaf and static with its place, class, kind, shape, dtype, size and sharding.

    `print` shows it as a table of rich's in a terminal where rich is installed, and in plain text, always the same,
    everywhere else: in files, notebooks, doctests. `.plain` is the text in any place. It reads no values of arrays, so
    it works for abstract, stacked and sharded trees, and under `jit`.

    Args:
        tree: A node, or any other tree.
        depth: How many steps of a path to show; what is deeper is summed up in one row. None for all.

    Raises:
        ValueError: If `depth` is less than 1.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     mean: jax.Array = buffer()
        ...     activation: str = static(default="relu")
        >>> print(summary([Layer(jnp.ones((64, 10)), jnp.zeros(10))]))
        list
        path                     class  kind    shape    dtype  count  bytes
        -----------------------  -----  ------  -------  -----  -----  -----
        [0].kernel               Layer  child   [64,10]  f32      640  2,560
        [0].mean                 Layer  buffer  [10]     f32       10     40
        [0].activation = 'relu'  Layer  static
        650 numbers, 2,600 bytes (2.5 KiB); 10 of them in buffers
    """
    if depth is not None and depth < 1:
        raise ValueError(f"summary(depth=...) takes 1 or more steps, got {depth}.")
    return Summary(tree, depth)


def _table(tree: object, depth: int | None) -> _Table:
    every = list(items_of(tree))
    tied = {path: first for first, *others in aliases_in(every) for path in others}
    groups: dict[Path, list[Item]] = {}
    for item in every:
        groups.setdefault(item.path if depth is None else item.path[:depth], []).append(item)
    rows = tuple(
        _row(items[0], tied) if items[0].path == path else _merged(tree, path, items, tied)
        for path, items in groups.items()
    )
    leaves = [item for items in groups.values() for item in items if item.kind != "static"]
    return _Table(rows, _total(leaves, tied.keys()))


def _row(item: Item, tied: dict[Path, Path]) -> Row:
    value, path = item.value, path_text(item.path) or "the tree itself"
    is_array = item.kind != "static" and array_text(value) is not None
    if item.path in tied:
        path = f"{path} = {path_text(tied[item.path])}"
    elif not is_array:
        shown = text(value)
        path = f"{path} = {shown if len(shown) <= _VALUE_LENGTH else f'{shown[: _VALUE_LENGTH - 3]}...'}"
    row = Row(path, item.owner, "tied" if item.path in tied else item.kind)
    if item.kind == "static" or not (is_array or elements_in(value)):
        return row
    return dataclasses.replace(
        row,
        shape=f"[{','.join(map(str, value.shape))}]" if is_array else "",
        dtype=_dtype(value),
        count=elements_in(value),
        nbytes=bytes_in(value),
        sharding=_sharding(value),
    )


def _merged(tree: object, path: Path, items: Sequence[Item], tied: Collection[Path]) -> Row:
    """The row for all that is below a place."""
    leaves = [item for item in items if item.kind != "static"]
    return Row(
        path_text(path),
        class_of(functools.reduce(child_of, path, tree)).__qualname__,
        ", ".join(dict.fromkeys("tied" if item.path in tied else item.kind for item in leaves or items)),
        dtype=", ".join(dict.fromkeys(_dtype(item.value) for item in leaves if elements_in(item.value))),
        count=sum(elements_in(item.value) for item in leaves),
        nbytes=sum(bytes_in(item.value) for item in leaves),
    )


def _dtype(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return class_of(value).__name__
    return f"{short_dtype(value.dtype)}{' (ref)' if is_ref(value) else ''}"


def _sharding(value: Any) -> str:
    sharding = None if isinstance(value, Tracer) else getattr(value, "sharding", None)
    spec = getattr(sharding, "spec", None)
    if spec is not None:
        return str(spec).replace("PartitionSpec", "P")
    devices: Any = getattr(sharding, "device_set", ())
    return class_of(sharding).__name__ if len(devices) > 1 else ""


def _total(leaves: Sequence[Item], tied: Collection[Path]) -> str:
    size = sum(bytes_in(item.value) for item in leaves)
    total = f"{sum(elements_in(item.value) for item in leaves):,} numbers, {size:,} bytes"
    if size >= 1024:
        exponent = min((size.bit_length() - 1) // 10, 4)
        total += f" ({size / 1024**exponent:.1f} {'KMGT'[exponent - 1]}iB)"
    in_buffers = sum(elements_in(item.value) for item in leaves if item.kind == "buffer")
    in_ties = sum(elements_in(item.value) for item in leaves if item.path in tied)
    parts = [
        f"{number:,} of them {where}" for number, where in ((in_buffers, "in buffers"), (in_ties, "tied")) if number
    ]
    return "; ".join([total, *parts])
