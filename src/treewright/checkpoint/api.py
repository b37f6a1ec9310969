"""`save` and `load` of one file, and the way through flat names for files of other programs."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar, cast, overload

from treewright._collector import uncollected
from treewright._core.text import cured, options_cure
from treewright.checkpoint.atomic import local_path
from treewright.checkpoint.file import SafetensorsFile, write
from treewright.checkpoint.foreign import Table, names_in, translated
from treewright.checkpoint.manifest import Manifest
from treewright.checkpoint.restore import ALONE, LoadOptions, Migrate, Modules, OnStatic, filled, taken
from treewright.checkpoint.tree import manifest_of

T = TypeVar("T")
StrPath = str | os.PathLike[str]
_OPTIONS = ("like", "part", "modules", "statics", "on_static", "allow_cast", "strict", "renamed", "migrate", "progress")


@cured(lambda _args, _kwargs: "It takes the path, then the tree: save(path, tree). A file that is there is replaced.")
def save(path: StrPath, tree: object, *, progress: bool | None = None) -> None:
    """Save a tree as one safetensors file that also holds its classes, its statics and a digest of every leaf.

    The file appears whole or not at all: it is written beside its place, brought to the disk and then renamed. A file
    that was there before is replaced in that step, and its owner and permissions are kept; a symbolic link stays, and
    what it leads to is replaced. An array that stands in several places of the tree is written once, and comes back as
    one.

    Args:
        path: Where to. Its folder must exist, and what is there already must be a regular file.
        tree: Any pytree of arrays, typed keys and numbers. Arrays that lie on several devices are gathered.
        progress: Whether to show a bar; None shows one for large trees on a terminal.

    Raises:
        CheckpointError: If something in the tree can't be saved, all of it by path, or the file can't be written.
        ImportError: If xxhash is not installed.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0), "name": Static("first")})
        >>> load(path)
        {'name': Static(value='first'), 'w': Array([0., 1., 2.], dtype=float32)}
    """
    with uncollected():
        write(local_path(path), tree, progress=progress)


@overload
def load(
    path: StrPath,
    *,
    like: T,
    part: str | None = ...,
    on_static: OnStatic = ...,
    allow_cast: bool = ...,
    strict: bool = ...,
    renamed: Mapping[str, str] | None = ...,
    migrate: Migrate | None = ...,
    progress: bool | None = ...,
) -> T: ...
@overload
def load(
    path: StrPath,
    *,
    part: str | None = ...,
    modules: Modules = ...,
    statics: Mapping[str, Any] | None = ...,
    progress: bool | None = ...,
) -> Any: ...
@cured(options_cure(*_OPTIONS, positional="load(path, like=tree)", template="like=", target="like=", tree="like="))
def load(
    path: StrPath,
    *,
    like: Any = ALONE,
    part: str | None = None,
    modules: Modules = (),
    statics: Mapping[str, Any] | None = None,
    on_static: OnStatic = "error",
    allow_cast: bool = False,
    strict: bool = True,
    renamed: Mapping[str, str] | None = None,
    migrate: Migrate | None = None,
    progress: bool | None = None,
) -> Any:
    """The tree in a file that `save` wrote, every leaf verified by its digest.

    With `like`, the result has exactly its treedef, and its arrays the placement of those of `like`. Classes, statics,
    shapes and dtypes are compared before an array is read. Without, the tree is made from what the file says, of
    classes that are found in `modules` and nowhere else; no `__init__` and no converter runs either way.

    Args:
        path: The file.
        like: A tree to load into: a live one, or an abstract one from `jax.eval_shape`, with shardings if it has them.
        part: The flat name of all that is loaded into `like`, as `"params.layers.0"`.
        modules: Without `like`, one or several modules or names of modules, which are imported. Only their own classes
            and functions are found, Treewright's, and the states of optax.
        statics: Without `like`, values of statics that were saved as descriptions: `{"tx": optax.adam(1e-3)}`.
        on_static: What to do if a static differs: `"error"`, or `"warn"` and `"ignore"` to keep that of `like`. A
            static without an exact form, such as a closure, is compared by a description, and only warned of.
        allow_cast: Whether a leaf may have another dtype in `like`, and is cast to it.
        strict: Whether leaves that only one side has, and other classes, are errors. If not, a warning lists them, and
            leaves that were not saved keep the value of `like`.
        renamed: New names by old ones, of one or several steps, found at any depth: `{"out": "head"}` renames
            `params.out.kernel` and the optimiser's `opt_state.0.mu.out.kernel`.
        migrate: A function from all saved leaves, by flat name, to those that `like` is to have.
        progress: Whether to show a bar; None shows one for large files on a terminal.

    Raises:
        CheckpointMismatchError: If the file does not fit `like`; its `differences` are those that the message lists.
        CheckpointDamagedError: If the file is not what was saved.
        CheckpointError: If it has no manifest or no such part, needs a newer Treewright, or can't be made.
        TypeError: If `like` is given with `modules` or `statics`, or its options without it.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> save(path := os.path.join(tempfile.mkdtemp(), "model"), {"w": jnp.arange(3.0)})
        >>> load(path, like=jax.eval_shape(lambda: {"w": jnp.zeros(3)}))
        {'w': Array([0., 1., 2.], dtype=float32)}
        >>> load(path, like={"w": jnp.zeros(4)})
        Traceback (most recent call last):
            ...
        treewright.errors.CheckpointMismatchError: The checkpoint does not fit the tree, a difference:
          ['w']: shape (3,) saved, (4,) in the tree
        What to do:
          Another shape: change the array in migrate=.
    """
    options = LoadOptions(on_static, allow_cast, strict, renamed, migrate, part, modules, statics)
    with uncollected(), SafetensorsFile(local_path(path)) as file:
        return taken(file.manifest, file.reader(progress=progress), like, options)


def read_manifest(path: StrPath) -> Manifest:
    """What a file that `save` wrote holds: nodes with classes and statics, leaves with shapes and dtypes.

    No array is read, nothing is imported.

    Raises:
        CheckpointDamagedError: If header or manifest is damaged.
        CheckpointError: If there is no manifest, or a newer Treewright wrote it.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> {leaf.name: leaf.form.shape for leaf in read_manifest(path).leaves}
        {'w': (3,)}
    """
    with SafetensorsFile(local_path(path)) as file:
        return file.manifest


def to_names(tree: object) -> dict[str, Any]:
    """The leaves of a tree by the flat names under which checkpoints keep them.

    Raises:
        CheckpointError: If two leaves would have one name, or one can't be saved.

    Examples:
        >>> from treewright.checkpoint import to_names
        >>> to_names({"layers": [{"bias": 1.0}, {"bias": 2.0}]})
        {'layers.0.bias': 1.0, 'layers.1.bias': 2.0}
    """
    return {leaf.name: leaf.value for leaf in manifest_of(tree).leaves}


def read_names(path: StrPath, *, template: object = None) -> dict[str, Any]:
    """The arrays in a checkpoint of another program, as numpy arrays by flat name: what `from_names` takes.

    What wrote it is seen from its first bytes: safetensors (also a model in several files, by its index or folder),
    flax's msgpack, equinox's leaves, npz, or a folder of Orbax. Pickles (`torch.save`) are refused: they run code.

    Args:
        path: The file or folder. Of a folder of steps, one step.
        template: For a file of equinox, which has no names: the model that its leaves go into. Without, their names are
            their places: `0`, `1`, ...

    Raises:
        CheckpointError: If it is of another format.
        CheckpointDamagedError: If it can't be read.
        ImportError: If the package that reads it is not installed.

    Examples:
        >>> import tempfile, os
        >>> import numpy as np
        >>> from treewright.checkpoint import from_names, read_names
        >>> path = os.path.join(tempfile.mkdtemp(), "weights.npz")
        >>> np.savez(path, **{"layer.w": np.ones(2, np.float32)})
        >>> from_names(read_names(path), like={"layer": {"w": jnp.zeros(2)}})
        {'layer': {'w': Array([1., 1.], dtype=float32)}}
    """
    return names_in(path, template)


def from_names(
    values: Mapping[str, Any], *, like: T, table: Table | None = None, allow_cast: bool = False, strict: bool = True
) -> T:
    """A tree like `like` with these leaves, by flat name: the way from files of other programs.

    Args:
        values: Arrays and numbers by name, as `to_names` gives them. They are copied.
        like: A live or abstract tree, whose structure, statics and shardings the result has.
        table: Our names by theirs. `*` stands for one step: `{"h.*.w": "layers.*.kernel"}`. A pair has a function
            besides that the array goes through: `{"fc.weight": ("fc.kernel", numpy.transpose)}`. None drops the array.
            Where the name of ours has fewer stars, what the first of theirs numbers is stacked along a new first axis.
        allow_cast: Whether a value may have another dtype than the leaf, and is cast to it.
        strict: Whether names that only one side has are errors.

    Raises:
        CheckpointMismatchError: If names, shapes or dtypes differ.
        CheckpointError: If a name is in no row of the table or in several, or a row meets no name.
        TypeError: If `values` is a path or anything else than arrays by name.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> from_names({"w": jnp.ones(2)}, like={"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
        >>> from_names({"0.w": jnp.ones(1), "1.w": jnp.zeros(1)}, like=jnp.zeros((2, 1)), table={"*.w": "value"})
        Array([[1.],
               [0.]], dtype=float32)
    """
    if not isinstance(cast("object", values), Mapping):
        raise TypeError("from_names takes arrays by name. Of a file: from_names(read_names(path), like=tree).")
    if table is not None:
        values = translated(values, table)
    return filled(values, like, LoadOptions(allow_cast=allow_cast, strict=strict))
