"""Load a checkpoint: call `migrate=` with its leaves, which are read when they are used, and read the others."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from treewright._base.jax_private import DictKey, jax_trees
from treewright._base.text import short_text
from treewright.checkpoint.fit import MISSING, Options, into_tree, part_and_names, replaced
from treewright.checkpoint.manifest import LeafRecord, Manifest
from treewright.checkpoint.placing import LeafRequest, Read, as_saved, values_of
from treewright.checkpoint.tree import tree_of
from treewright.errors import CheckpointError


def load_tree(manifest: Manifest, read: Read, like: Any, options: Options) -> Any:
    """The tree of a checkpoint, or a part of it, shaped like `like`; without it, in plain lists, tuples and dicts.

    Raises as `load`. If the checkpoint does not fit, only what `migrate` used was read.
    """
    manifest = part_and_names(manifest, options)
    if like is MISSING:
        requests = list(map(as_saved, manifest.leaves))
        return tree_of(manifest, values_of(requests, read(requests)))
    if options["migrate"] is None:
        return into_tree(manifest, {}, like, options, read)
    is_loaded = False

    def read_before_the_end(requests: Sequence[LeafRequest]) -> Iterator[Any]:
        if is_loaded:
            raise CheckpointError(
                f"{requests[0].leaf.path} was used after the checkpoint was loaded. Read leaves inside migrate=; "
                f"dict(leaves.items()) reads all."
            )
        return read(requests)

    try:
        migrated = options["migrate"](SavedLeaves({leaf.name: leaf for leaf in manifest.leaves}, read_before_the_end))
        if not isinstance(migrated, Mapping):
            raise TypeError(
                f"migrate= returned {short_text(migrated)}, but must return a dict: the leaves of the tree by flat "
                f"name."
            )
        values = _unread(migrated)
        changed = {leaf.name for leaf in manifest.leaves} ^ {*values}
        return into_tree(*replaced(manifest, values), like, options, read, changed=changed)
    finally:
        is_loaded = True


class SavedLeaves(dict[str, Any]):
    """A dict of leaves by flat name, each read from a checkpoint at its first use: numpy arrays, numbers and keys.

    The dict itself has the record of each leaf that was not read. `leaves | {...}` and `copy` read nothing, so a leaf
    that a migration only passes on goes to its devices like one without a migration.
    """

    def __init__(self, leaves: Mapping[str, Any], read: Read) -> None:
        super().__init__(leaves)
        self._read = read

    def unread(self) -> dict[str, Any]:
        """The values by name; for a leaf that was not read, its record."""
        return dict(super().items())

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, LeafRecord):
            request = as_saved(value, on_host=True)
            self[name] = values_of([request], self._read([request]))[name]
        return super().__getitem__(name)

    def copy(self) -> "SavedLeaves":
        """A copy; reads nothing."""
        return SavedLeaves(self.unread(), self._read)

    def __or__(self, other: Any) -> Any:
        return SavedLeaves(self.unread() | _unread(other), self._read)

    def __ror__(self, other: Any) -> Any:
        return SavedLeaves(_unread(other) | self.unread(), self._read)

    def __iter__(self) -> Iterator[str]:  # with it, `{**leaves}` calls `__getitem__`
        return super().__iter__()

    # dict's own methods do not call `__getitem__`; these do.

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a name and return its value."""
        if name in self:
            self[name]  # reads
        return super().pop(name, *default)

    get: Any = MutableMapping.get
    items: Any = MutableMapping.items
    popitem: Any = MutableMapping.popitem
    setdefault: Any = MutableMapping.setdefault
    values: Any = MutableMapping.values

    def __repr__(self) -> str:
        texts = (value.form if isinstance(value, LeafRecord) else short_text(value) for value in super().values())
        return f"{{{', '.join(f'{name!r}: {text}' for name, text in zip(self, texts, strict=True))}}}"


def _unread(values: Mapping[str, Any]) -> dict[str, Any]:
    return values.unread() if isinstance(values, SavedLeaves) else dict(values)


def _flattened(leaves: SavedLeaves) -> tuple[Any, tuple[str, ...]]:
    names = tuple(sorted(leaves))
    values = dict(leaves.items())
    return [(DictKey(name), values[name]) for name in names], names


# For `jax.tree.map(..., leaves)`, as of a dict.
jax_trees.register_pytree_with_keys(
    SavedLeaves, _flattened, lambda names, values: dict(zip(names, values, strict=True))
)
