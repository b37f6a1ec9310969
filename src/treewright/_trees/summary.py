"""`summary`: a table of all that is in a tree."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import dataclasses
import functools
import html
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core.functions import class_of
from treewright._core.instance import finished_pair, is_node
from treewright._core.jax_private import Path, jax_trees, path_text, untyped_jax
from treewright._core.jax_refs import content_of, is_ref
from treewright._core.text import (
    array_text,
    counted,
    cured,
    cut_text,
    first_names,
    first_text,
    options_cure,
    scalar_of,
    short_dtype,
    table,
    text,
)
from treewright._trees.level import child_of
from treewright._trees.sizes import Item, aliases_in, bytes_in, elements_in, items_of

if TYPE_CHECKING:
    from rich.table import Table

_VALUE_LENGTH = 40  # characters of a static, or of another value that is not an array
_HEAD = ("path", "class", "kind", "shape", "dtype", "count", "bytes")
_COLUMNS = (*_HEAD, "mean", "std", "min", "max", "not finite", "sharding")
_NUMBERS = frozenset({"count", "bytes", "mean", "std", "min", "max", "not finite"})


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of a summary.

    Args:
        path: The place; with ` = ` and the value if that is not an array, or a scalar of which values were asked for,
            or with the other place of a tied array.
        class_name: The class of the node that it belongs to; where a `depth` ends the table, of what stands there.
        kind: `"child"`, `"static"`, `"buffer"` or `"tied"`.
        shape: As `[64,10]`; empty for what is not an array.
        dtype: As `f32`, or `f32 (ref)` for a ref; empty for what is not an array.
        count: How many numbers it holds.
        nbytes: How many bytes they take.
        sharding: The partition spec, if it is spread over a mesh.
        values: What its numbers are like, if values were asked for.
    """

    path: str
    class_name: str
    kind: str
    shape: str = ""
    dtype: str = ""
    count: int = 0
    nbytes: int = 0
    sharding: str = ""
    values: "Statistics | None" = None

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the columns."""
        sizes = (f"{self.count:,}", f"{self.nbytes:,}") if self.dtype else ("", "")
        values: tuple[str, ...] = ("", "", "", "", "")
        if self.values is not None:
            told = (self.values.mean, self.values.std, self.values.low, self.values.high)
            numbers = (f"{number:.3g}" if self.values.finite else "" for number in told)
            values = (*numbers, f"{self.values.not_finite:,}" if self.values.not_finite else "")
        return (self.path, self.class_name, self.kind, self.shape, self.dtype, *sizes, *values, self.sharding)


class _Table(NamedTuple):
    rows: tuple[Row, ...]
    total: str
    notes: tuple[str, ...]


class Summary:
    """What `summary` gives. As a string it is a table in plain text; notebooks and rich draw one of their own.

    The table is made when it is first looked at. Until then the leaves are kept.

    Attributes:
        title: The class of the tree.
    """

    def __init__(self, tree: object, depth: int | None, *, values: bool) -> None:
        self.title: str = class_of(tree).__qualname__
        if is_node(tree):
            finished_pair(tree)  # which refuses one whose __init__ has not returned, in our own words
        leaves, treedef = jax_trees.tree_flatten(tree)  # as it is now, whatever happens to its lists and dicts
        self._held: _Table | Callable[[], _Table] = functools.partial(_table, leaves, treedef, depth, values=values)
        # Tracers must not outlive their trace, and values are those of now.
        if values or any(isinstance(leaf, Tracer) for leaf in leaves):
            self._made()

    def _made(self) -> _Table:
        held = self._held
        if not isinstance(held, _Table):
            held = self._held = held()
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
        """The line below the table."""
        return self._made().total

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said below it of Python numbers that are children."""
        return self._made().notes

    def __str__(self) -> str:
        head, *rows = self._cells()
        lines = table([head, *rows], right=_NUMBERS, rule=True)
        return "\n".join([self.title, *lines, self.total, *self.notes])

    def __repr__(self) -> str:
        return str(self)

    @property
    def plain(self) -> str:
        """The same as `str`."""
        return str(self)

    def print(self) -> None:
        """Print it: in a terminal as a table with colours, by rich where that is installed, elsewhere in plain text."""
        if getattr(sys.stdout, "isatty", bool)():  # programs without a console have no stdout
            try:
                from rich.console import Console
            except ImportError:
                pass
            else:
                Console().print(self)
                return
        print(self)  # noqa: T201  it is what was asked for

    def _cells(self) -> list[tuple[str, ...]]:
        """The head and the rows; of the last columns those that some row fills."""
        lines = [row.cells() for row in self.rows]
        shown = [place for place, name in enumerate(_COLUMNS) if name in _HEAD or any(line[place] for line in lines)]
        return [tuple(line[place] for place in shown) for line in (_COLUMNS, *lines)]

    def __rich__(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        head, *lines = self._cells()
        caption = Text("\n".join([self.total, *self.notes]))
        table = Table(title=self.title, caption=caption, title_justify="left", caption_justify="left")
        for name in head:
            table.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
        styles = {"static": "dim", "buffer": "cyan", "tied": "magenta"}
        for row, line in zip(self.rows, lines, strict=True):
            table.add_row(*map(Text, line), style=styles.get(row.kind))
        return table

    def _repr_html_(self) -> str:
        """A table in the colours of the notebook, statics paler."""
        head, *lines = self._cells()
        below = "<br>".join(map(html.escape, (self.total, *self.notes)))
        rows = (
            _html_row("td", head, line, opacity=0.65 if row.kind == "static" else 1)
            for row, line in zip(self.rows, lines, strict=True)
        )
        return (
            f'<table><caption style="text-align:left">{html.escape(self.title)}</caption>'
            f"<thead>{_html_row('th', head, head)}</thead><tbody>{''.join(rows)}</tbody>"
            f'<tfoot><tr><td colspan="{len(head)}" style="text-align:left">{below}</td></tr></tfoot></table>'
        )


def _html_row(tag: str, head: Sequence[str], line: Sequence[str], *, opacity: float = 1) -> str:
    sides = ("right" if name in _NUMBERS else "left" for name in head)
    cells = (
        f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>' for side, cell in zip(sides, line, strict=True)
    )
    return f'<tr style="opacity:{opacity}">{"".join(cells)}</tr>'


@cured(options_cure("depth", "values", positional="summary(tree, values=True)"))
def summary(tree: object, *, depth: int | None = None, values: bool = False) -> Summary:
    """A table of what is in a tree: each leaf and static with its place, class, kind, shape, dtype, size and sharding.

    As a string it is plain text, the same everywhere. `.print()` draws it with colours in a terminal where rich is
    installed, and notebooks show it as a table. It works for abstract, stacked and sharded trees, and under `jit`.

    A Python number that is a child of a node, as `rate: float = 0.5` makes one, is trained. Where there are such beside
    arrays, a line below the table says so.

    Args:
        tree: A node, or any other tree.
        depth: How many steps of a path to show; what is deeper is summed up in one row. None for all.
        values: Whether to look at the numbers, too: scalars are shown behind their path, and of other arrays the mean,
            standard deviation, lowest and highest of what is finite, and how many are not; of refs those of what they
            hold. This waits for what is still being computed. Traced, abstract, deleted and complex arrays, and those
            that other processes hold parts of, have none.

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
        >>> print(summary({"omega": jnp.float32(2.5), "noise": jnp.array([-1, 0, 1, jnp.nan])}, values=True))
        dict
        path             class  kind   shape  dtype  count  bytes  mean    std  min  max  not finite
        ---------------  -----  -----  -----  -----  -----  -----  ----  -----  ---  ---  ----------
        ['noise']        dict   child  [4]    f32        4     16     0  0.816   -1    1           1
        ['omega'] = 2.5  dict   child  []     f32        1      4
        5 numbers, 20 bytes
    """
    steps: Any = depth
    if steps is not None and not (isinstance(steps, int) and steps >= 1):
        raise ValueError(f"summary(depth=...) takes 1 or more steps, got {first_text(depth)}.")
    return Summary(tree, depth, values=values)


_Values = dict[Path, "Statistics | None"]


def _table(leaves: list[Any], treedef: Any, depth: int | None, *, values: bool) -> _Table:
    tree = treedef.unflatten(leaves)
    every = list(items_of(tree))
    read = {item.path: item.value for item in every if values and item.kind != "static"}
    found = dict(zip(read, statistics_of(list(read.values())), strict=True))
    tied = {path: first for first, *others in aliases_in(every) for path in others}
    groups: dict[Path, list[Item]] = {}
    for item in every:
        groups.setdefault(item.path if depth is None else item.path[:depth], []).append(item)
    rows = tuple(
        _row(items[0], tied, found) if items[0].path == path else _merged(tree, path, items, tied, found)
        for path, items in groups.items()
    )
    in_tree = [item for items in groups.values() for item in items if item.kind != "static"]
    return _Table(rows, _total(in_tree, tied.keys()), tuple(_notes(tree, in_tree)))


def _row(item: Item, tied: dict[Path, Path], found: _Values) -> Row:
    value, path = item.value, path_text(item.path) or "the tree itself"
    is_array = item.kind != "static" and array_text(value) is not None
    values = found.get(item.path)
    is_read = item.path in found and is_array
    scalar = scalar_of(content_of(value) if values else value, math.inf) if is_read else None
    if item.path in tied:
        path = f"{path} = {path_text(tied[item.path])}"
    elif scalar is not None:
        path = f"{path} = {scalar}"
    elif not is_array:
        path = f"{path} = {cut_text(text(value), _VALUE_LENGTH)}"
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
        values=values if scalar is None else None,
    )


def _merged(tree: object, path: Path, items: Sequence[Item], tied: Collection[Path], found: _Values) -> Row:
    """The row for all that is below a place."""
    leaves = [item for item in items if item.kind != "static"]
    return Row(
        path_text(path),
        class_of(functools.reduce(child_of, path, tree)).__qualname__,
        ", ".join(dict.fromkeys("tied" if item.path in tied else item.kind for item in leaves or items)),
        dtype=", ".join(dict.fromkeys(_dtype(item.value) for item in leaves if elements_in(item.value))),
        count=sum(elements_in(item.value) for item in leaves),
        nbytes=sum(bytes_in(item.value) for item in leaves),
        values=_together(found.get(item.path) for item in leaves),
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
    total = f"{counted(sum(elements_in(item.value) for item in leaves), 'number')}, {counted(size, 'byte')}"
    if size >= 1024:
        exponent = min((size.bit_length() - 1) // 10, 4)
        total += f" ({size / 1024**exponent:.1f} {'KMGT'[exponent - 1]}iB)"
    in_buffers = sum(elements_in(item.value) for item in leaves if item.kind == "buffer")
    in_ties = sum(elements_in(item.value) for item in leaves if item.path in tied)
    parts = [
        f"{number:,} of them {where}" for number, where in ((in_buffers, "in buffers"), (in_ties, "tied")) if number
    ]
    return "; ".join([total, *parts])


_NOTES = (
    ((float, complex), "Python floats as children, so training changes them; static() or buffer() if it should not"),
    ((bool, int), "Python ints or bools as children, so jit traces them; static() if they are settings"),
)


def _notes(tree: object, leaves: Sequence[Item]) -> Iterator[str]:
    """What is said of Python numbers that are children of nodes; nothing in trees without arrays, such as settings."""
    if not any(array_text(item.value) is not None for item in leaves):
        return
    for kinds, note in _NOTES:
        names = first_names(
            path_text(item.path)
            for item in leaves
            if item.kind == "child" and class_of(item.value) in kinds and _in_a_node(tree, item.path)
        )
        if names:
            yield f"{names}: {note}"


def _in_a_node(tree: Any, path: Path) -> bool:
    return any(is_node(functools.reduce(child_of, path[:steps], tree)) for steps in range(len(path)))


# What the numbers in arrays are like

_KINDS = (jnp.floating, jnp.integer, jnp.bool)
_SMALL = 2**18  # numbers that are fetched sooner than a program is compiled for their shape


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """What the numbers in one array, or in several together, are like."""

    finite: int  # how many of them are; what follows is about these
    mean: float  # NaN if there are none
    std: float
    low: float
    high: float
    not_finite: int


def statistics_of(leaves: Iterable[Any]) -> list[Statistics | None]:
    """The statistics of each leaf; None for what holds no real numbers, and for what can't be read here.

    Small arrays are fetched, large ones are reduced where they are, and what is left of them is fetched: all in one go.
    An array of which other processes hold a part is left out, since a program over it has to run in all of them.
    """
    nans, infs = jax.debug_nans(new_val=False), jax.debug_infs(new_val=False)  # what is found is shown, and no error
    with nans, infs, jax.ensure_compile_time_eval():  # under jit, too
        arrays = [content_of(leaf) if _can_be_read(leaf) else None for leaf in leaves]
        fetched: list[Any] = jax.device_get([_on_device(a) if _is_reduced_on_device(a) else a for a in arrays])
    return [None if values is None else _statistics(values) for values in fetched]


def _can_be_read(leaf: Any) -> bool:
    if isinstance(leaf, Tracer) or not (isinstance(leaf, jax.Array | np.ndarray) or is_ref(leaf)):
        return False
    if not elements_in(leaf) or not any(jnp.issubdtype(cast("Any", leaf).dtype, kind) for kind in _KINDS):
        return False
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return False
    return isinstance(leaf, np.ndarray) or leaf.sharding.is_fully_addressable


def _is_reduced_on_device(array: Any) -> bool:
    if not isinstance(array, jax.Array) or array.size <= _SMALL:
        return False
    if array.dtype.itemsize > jnp.result_type(float).itemsize:  # of 64 bits, where these are turned off
        return False
    mesh: Any = jax.sharding.get_abstract_mesh()
    own = getattr(array.sharding, "mesh", None)
    return bool(mesh.empty or (own is not None and mesh == own.abstract_mesh))  # JAX takes no array of another one


@untyped_jax.jit  # type: ignore[untyped-decorator]
def _on_device(array: Any) -> tuple[Any, ...]:
    return _reduced(array.astype(jnp.float64 if array.dtype.itemsize > 4 else jnp.float32), jnp)


def _statistics(values: Any) -> Statistics:
    """The statistics of an array, or of what is left of one that was reduced."""
    with np.errstate(all="ignore"):  # where nothing is finite
        reduced: tuple[Any, ...] = _reduced(values.astype(np.float64), np) if hasattr(values, "astype") else values
    mean, std, low, high, finite, bad = reduced
    return Statistics(int(finite), float(mean), float(std), float(low), float(high), int(bad))


def _reduced(numbers: Any, numpy: Any) -> tuple[Any, ...]:
    """Mean, deviation, lowest and highest of what is finite, how many are and are not: by numpy or by JAX's."""
    finite = numpy.isfinite(numbers)
    bad = numpy.sum(~finite)
    count = numbers.size - bad
    low = numpy.min(numbers, where=finite, initial=numpy.inf)
    high = numpy.max(numbers, where=finite, initial=-numpy.inf)
    largest = numpy.maximum(-low, high)
    is_usual = (largest == 0) | ((largest > 1e-12) & (largest < 1e12))
    scale = numpy.where(is_usual, 1, largest)  # sums and squares of others would overflow or vanish
    scaled = numbers / scale
    mean = numpy.sum(scaled, where=finite) / count
    apart = scaled - mean
    missed = numpy.sum(apart, where=finite) / count  # by the mean as it was rounded, which far from zero is much
    std = numpy.sqrt(numpy.sum(numpy.square(apart - missed), where=finite) / count)
    return (mean + missed) * scale, std * scale, low, high, count, bad


def _together(parts: Iterable[Statistics | None]) -> Statistics | None:
    """The statistics of several arrays as if they were one; None if there are none."""
    every = [part for part in parts if part is not None]
    if not every:
        return None
    some = [part for part in every if part.finite] or every
    total = sum(part.finite for part in some)
    shares = [(part, part.finite / total if total else math.nan) for part in some]
    mean = sum(share * part.mean for part, share in shares)
    distances = [math.sqrt(share) * math.hypot(part.std, part.mean - mean) for part, share in shares]
    low, high = min(part.low for part in some), max(part.high for part in some)
    return Statistics(total, mean, math.hypot(*distances), low, high, sum(part.not_finite for part in every))
