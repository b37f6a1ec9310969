"""One difference between two trees: its path, its values, and two texts that differ."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax

from treewright._base.functions import BY_VALUE, attribute_of, public
from treewright._base.jax_private import Path, path_text
from treewright._base.text import LENGTH, cut_text, short_text
from treewright._core import kind_of
from treewright._reports import excerpts
from treewright._trees.level import LeafType, Level, leaf_type_of, level_of

_OfTrees: TypeAlias = Literal["class", "static", "added", "removed", "shape", "dtype", "weak_type", "sharding", "value"]
_OfCalls: TypeAlias = Literal["placement", "passing", "setting", "option", "batch", "function"]
DifferenceKind: TypeAlias = _OfTrees | _OfCalls

_BY_VALUE = ("static", "setting", "option", "batch", "function")  # kinds whose values are printed


class Absent(enum.Enum):
    """The type of `ABSENT`, the side of a `Difference` that has nothing at the path."""

    ABSENT = "nothing"


ABSENT = Absent.ABSENT


@public
@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Difference:
    """One place where two trees differ. `str` is one line.

    Setting `right` at `path` in the left tree, for each difference, produces the right tree.

    Args:
        path: The place, as JAX's keys; statics have the key of their field.
        left: The left tree's value: a leaf, a static, or a whole subtree. `ABSENT` if it has nothing at this path.
        right: The right tree's value, likewise.
        kind: `"class"` (of nodes or containers, a leaf against one, or a ref against an array), `"static"`, `"added"`,
            `"removed"`; for leaves `"shape"`, `"dtype"`, `"weak_type"`, `"sharding"`, `"value"`. In retrace reports
            also `"placement"` (the devices of an array), `"passing"` (by position or keyword), `"setting"` of JAX,
            `"option"` of `jit`, `"batch"` (the size that `vmap` maps over), and `"function"` (a different function of
            the same definition was traced).
        reason: Why they differ, if the values do not show it; else empty.
        parts: For a static that is a tuple, a dict, a dataclass or the like: the differences inside it.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        >>> for difference in diff([Layer(jnp.ones(2))], [Layer(jnp.ones(3), "gelu")]):
        ...     print(difference)
        [0].activation (static): 'relu' -> 'gelu'
        [0].kernel (shape): float32[2] -> float32[3]; axis 0: 2 -> 3
    """

    path: Path
    left: Any
    right: Any
    kind: DifferenceKind
    reason: str = ""
    parts: "tuple[Difference, ...]" = ()

    def __str__(self) -> str:
        if self.parts:
            return "; ".join(map(str, self.parts))
        reason = f"; {self.reason}" if self.reason else ""
        return f"{path_text(self.path) or 'the whole tree'} ({self.kind}): {self.change}{reason}"

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def change(self) -> str:
        """`'relu' -> 'gelu'`: both values, cut to a readable length."""
        if self.kind == "added":
            return shown(self.right)
        if self.kind == "removed":
            return shown(self.left)
        if self.kind == "placement":
            placements = self.left.placement, self.right.placement
            if str(placements[0]) != str(placements[1]):
                return " -> ".join(map(str, placements))
            details = describe_apart(*[placement.sharding for placement in placements]) or ("", "in another layout")
            text = str(placements[0]).partition(" over devices")[0]
            return " -> ".join([f"{text} {detail}".rstrip() for detail in details])
        if self.kind == "passing":
            return f"{self.left} -> {self.right}"
        if self.kind in _BY_VALUE or (self.kind == "value" and _is_plain(leaf_type_of(self.left))):
            return " -> ".join(two_texts(self.left, self.right, reason=self.reason))
        return f"{shown(self.left)} -> {shown(self.right)}"


# Texts


def two_texts(left: Any, right: Any, *, reason: str = "") -> Sequence[str]:
    """Short texts for two values that differ.

    The texts differ too, unless a reason says why they look alike: by what a short text leaves out, such as the module
    of a class or the devices of a mesh, and finally by the addresses of the objects.
    """
    texts = short_text(left), short_text(right)
    if texts[0] != texts[1]:
        return texts
    if isinstance(left, str) and isinstance(right, str):
        return excerpts((left, right), LENGTH // 2, show=repr)
    if type(left) is type(right) and type(left) in {int, bytes} and left != right:  # Python limits decimal digits
        return excerpts([hex(side) if type(side) is int else repr(side) for side in (left, right)], LENGTH // 2)
    texts = short_text(left, with_module=True), short_text(right, with_module=True)
    if texts[0] != texts[1]:
        return texts
    details = describe_apart(left, right)
    if details is None:
        if reason or type(left) in BY_VALUE:
            return texts
        details = [f"at {getattr(side, 'address', id(side)):#x}" for side in (left, right)]
    return [f"{text} {detail}" for text, detail in zip(texts, details, strict=True)]


def describe_apart(left: Any, right: Any) -> Sequence[str] | None:
    """What distinguishes two meshes, shardings or other plain values whose texts are equal; None if nothing does."""
    sides = [side if (kept := attribute_of(side, "kept")) is None else kept for side in (left, right)]  # of snapshots
    meshes = [side if (mesh := attribute_of(side, "mesh")) is None else mesh for side in sides]
    if all(isinstance(mesh, jax.sharding.Mesh) for mesh in meshes):
        devices = [", ".join(str(device.id) for device in mesh.devices.flat) for mesh in meshes]
    elif all(isinstance(side, jax.sharding.Sharding) for side in sides):
        devices = [", ".join(sorted(str(device) for device in side.device_set)) for side in sides]
    else:
        return _parts_apart(*sides)
    if devices[0] != devices[1]:
        return [f"over devices {text}" for text in excerpts(devices, LENGTH // 2)]
    memories = [f"in the memory {getattr(side, 'memory_kind', None)}" for side in sides]
    return None if memories[0] == memories[1] else memories


def _parts_apart(left: Any, right: Any) -> Sequence[str] | None:
    """The parts of two values of one plain kind that differ, such as the `is_safe` of UUIDs."""
    kind = kind_of(type(left))
    if type(left) is not type(right) or kind is None or kind.make is not None:
        return None
    pairs = zip(kind.parts(left) or (), kind.parts(right) or (), strict=False)
    texts = ([f"with {short_text(part)}" for part in pair] for pair in pairs)
    return next((pair for pair in texts if pair[0] != pair[1]), None)


def shown(tree: Any) -> str:
    """The text of one side: the type of an array, the class and contents of a node or container, else the value."""
    opened = level_of(tree) or leaf_type_of(tree)
    return short_text(tree) if _is_plain(opened) else cut_text(repr(opened))


def _is_plain(opened: Level | LeafType) -> bool:
    """Whether a tree is a leaf that is shown by its value."""
    if not isinstance(opened, LeafType) or opened.anything:
        return False
    return opened.python is not None or opened.aval is None
