"""`summary`: a table of the leaves and statics of a tree."""

import dataclasses
import html
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from treewright._base.functions import attribute_of
from treewright._base.jax_private import typeof
from treewright._base.text import array_text, class_name, cut_text, short_text, text
from treewright._core import flat_form, is_node
from treewright._reports import counted, first_names, table
from treewright._trees.level import reject_classes
from treewright._trees.sizes import Item, aliases_in, bytes_in, elements_in, items_of

_MAX_LENGTH = 40  # characters of a static or another value that is not an array
_HEAD = ("path", "class", "kind", "shape", "dtype", "count", "bytes", "sharding")
_NUMBER_COLUMNS = frozenset({"count", "bytes"})


class Row(NamedTuple):
    """One line of a summary.

    Args:
        path: The path; with ` = ` and the value if it is not an array, or the first path of a tied array.
        class_name: The class of its node; for a row that sums up a subtree, the class of the subtree.
        kind: `"child"`, `"static"`, `"buffer"` or `"tied"`.
        shape: Such as `[64,10]`; empty if it is not an array.
        dtype: Such as `f32`; empty if it is not an array.
        count: The number of elements.
        nbytes: The number of bytes.
        sharding: The partition spec, if it is sharded over a mesh.
    """

    path: str
    class_name: str
    kind: str
    shape: str = ""
    dtype: str = ""
    count: int = 0  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]  a tuple's method
    nbytes: int = 0
    sharding: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the columns."""
        sizes = (f"{self.count:,}", f"{self.nbytes:,}") if self.dtype else ("", "")
        return (self.path, self.class_name, self.kind, self.shape, self.dtype, *sizes, self.sharding)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The table of a tree. `str` is plain text; notebooks show an HTML table.

    Args:
        title: The class of the tree.
        rows: One for each leaf and each static, or for each subtree at the `depth`.
        total: The line below the table.
        notes: The lines below that, about Python numbers that are children.
    """

    title: str
    rows: tuple[Row, ...]
    total: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = table(self._cells(), right=_NUMBER_COLUMNS, rule=True)
        return "\n".join([self.title, *lines, self.total, *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _cells(self) -> list[tuple[str, ...]]:
        """The head and the rows, without the last column if it is empty."""
        columns = len(_HEAD) if any(row.sharding for row in self.rows) else len(_HEAD) - 1
        return [line[:columns] for line in (_HEAD, *(row.cells() for row in self.rows))]

    def _repr_html_(self) -> str:
        """A table in the colours of the notebook; statics are paler."""
        head, *lines = self._cells()
        footer = "<br>".join(map(html.escape, (self.total, *self.notes)))
        rows = (
            _html_row("td", line, opacity=0.65 if row.kind == "static" else 1)
            for row, line in zip(self.rows, lines, strict=True)
        )
        return (
            f'<table><caption style="text-align:left">{html.escape(self.title)}</caption>'
            f"<thead>{_html_row('th', head)}</thead><tbody>{''.join(rows)}</tbody>"
            f'<tfoot><tr><td colspan="{len(head)}" style="text-align:left">{footer}</td></tr></tfoot></table>'
        )


def _html_row(tag: str, line: Sequence[str], *, opacity: float = 1) -> str:
    sides = ("right" if name in _NUMBER_COLUMNS else "left" for name in _HEAD)
    cells = (
        f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>' for side, cell in zip(sides, line, strict=False)
    )
    return f'<tr style="opacity:{opacity}">{"".join(cells)}</tr>'


def summary(tree: object, *, depth: int | None = None) -> Summary:
    """A table of a tree: each leaf and static with its path, class, kind, shape, dtype, size and sharding.

    `str` is plain text, and notebooks show an HTML table. It works for abstract, stacked and sharded trees, and under
    `jit`.

    A Python number that is a child of a node, as in `rate: float = 0.5`, is trained. If a tree has such numbers and
    arrays, a line below the table lists them.

    Args:
        tree: A node, or any other tree.
        depth: The maximum length of a path; deeper subtrees are summed up in one row each. None for no limit.

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
    steps: Any = depth
    if steps is not None and not (isinstance(steps, int) and steps >= 1):
        raise ValueError(f"depth= must be a positive integer or None, got {short_text(depth)}.")
    if is_node(tree):
        flat_form(tree)  # raises Treewright's own error if __init__ has not returned
    reject_classes("summary", tree)
    items = list(items_of(tree, steps))
    tied = {id(item): first.path for first, *others in aliases_in(items) for item in others}
    texts: dict[object, str] = {}
    rows = [_row(item, tied.get(id(item)), texts) for item in items]
    groups = itertools.groupby(zip(items, rows, strict=True), lambda pair: id(pair[0].group or pair[0]))
    merged = (_merged(*zip(*pairs, strict=True)) for _, pairs in groups)
    return Summary(class_name(tree), tuple(merged), _total(items, rows), tuple(_notes(tree, items)))


def _row(item: Item, first: str | None, texts: dict[object, str]) -> Row:
    """The row of a leaf or static, with the first path of a tied array. `texts` has the slow texts so far."""
    path, value, kind = item.path or "the tree itself", item.value, item.kind
    dtype, _, shape = ("" if kind == "static" else _array_text(value, texts)).partition("[")
    if first is not None:
        path = f"{path} = {first}"
    elif not dtype:
        if id(value) not in texts:
            texts[id(value)] = cut_text(text(value), _MAX_LENGTH)
        path = f"{path} = {texts[id(value)]}"
    count = 0 if kind == "static" else elements_in(value)
    row_kind = kind if first is None else "tied"
    if not (dtype or count):
        return Row(path, item.owner, row_kind)
    shape = f"[{shape.partition(']')[0]}]" if dtype else ""
    dtype = dtype or type(value).__name__
    return Row(path, item.owner, row_kind, shape, dtype, count, bytes_in(value), _sharding(value))


def _array_text(value: Any, texts: dict[object, str]) -> str:
    """`f32[64,10]` for an array; empty for other values."""
    key = type(value), attribute_of(value, "dtype"), attribute_of(value, "shape")
    if not isinstance(key[1], np.dtype):
        return array_text(value) or ""
    if key not in texts:
        texts[key] = array_text(value) or ""
    return texts[key]


def _merged(items: Sequence[Item], rows: Sequence[Row]) -> Row:
    """The row of one leaf or static, or the row that sums up a subtree."""
    group = items[0].group
    if group is None:
        return rows[0]
    leaves = [row for row in rows if row.kind != "static"]
    kinds, dtypes, shardings = (
        ", ".join(dict.fromkeys(filter(None, texts)))
        for texts in zip(*((row.kind, row.dtype, row.sharding) for row in leaves or rows), strict=True)
    )
    count, nbytes = sum(row.count for row in leaves), sum(row.nbytes for row in leaves)
    return Row(group.path, class_name(group.value), kinds, "", dtypes, count, nbytes, shardings)


def _sharding(value: Any) -> str:
    """The partition spec of an array over a mesh, or the class of another sharding over several devices.

    A traced array has only a spec, and only on a mesh with explicit axes: otherwise the compiler chooses one later.
    """
    sharding: Any = attribute_of(typeof(value) if isinstance(value, Tracer) else value, "sharding")
    spec = getattr(sharding, "spec", None)
    if spec is not None:
        return "" if sharding.mesh.empty else _spec_text(spec)
    devices: Any = getattr(sharding, "device_set", ())
    return type(sharding).__name__ if len(devices) > 1 else ""


def _spec_text(spec: Any) -> str:
    """The text of a partition spec, without the `None`s at its end: `P('x')` and `P('x', None)` are one layout."""
    axes = tuple(spec)
    while axes and axes[-1] is None:
        axes = axes[:-1]
    shown = type(spec)(*axes, unreduced=spec.unreduced, reduced=spec.reduced)
    return str(shown).replace("PartitionSpec", "P")


def _total(items: Sequence[Item], rows: Sequence[Row]) -> str:
    size = sum(row.nbytes for row in rows)
    total = f"{counted(sum(row.count for row in rows), 'number')}, {counted(size, 'byte')}"
    if size >= 1024:
        exponent = min((size.bit_length() - 1) // 10, 4)
        total += f" ({size / 1024**exponent:.1f} {'KMGT'[exponent - 1]}iB)"
    in_buffers = sum(row.count for item, row in zip(items, rows, strict=True) if item.kind == "buffer")
    in_ties = sum(row.count for row in rows if row.kind == "tied")
    parts = [
        f"{number:,} of them {where}" for number, where in ((in_buffers, "in buffers"), (in_ties, "tied")) if number
    ]
    return "; ".join([total, *parts])


_NOTES = (
    ((float, complex), "Python floats as children, so training changes them; static() or buffer() if it should not"),
    ((bool, int), "Python ints or bools as children, so jit traces them; static() if they are settings"),
)


def _notes(tree: object, items: Sequence[Item]) -> Iterator[str]:
    """Lines about Python numbers that are children of nodes; none for trees without arrays, such as settings."""
    if not any(item.kind != "static" and array_text(item.value) for item in items):
        return
    for kinds, note in _NOTES:
        names = first_names(
            item.path
            for item in items
            if item.kind == "child" and type(item.value) in kinds and (is_node(tree) or item.owner != class_name(tree))
        )
        if names:
            yield f"{names}: {note}"
