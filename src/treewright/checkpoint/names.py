"""Convert trees to arrays by flat name and back, for files of other programs."""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

from collections.abc import Mapping
from typing import Any, TypeVar

from treewright.checkpoint.arrays import DTYPES
from treewright.checkpoint.file import CODES, StrPath, local_path, open_safetensors, translate_read_errors
from treewright.checkpoint.fit import check_options, tree_from_values
from treewright.checkpoint.tree import parts_to_save
from treewright.errors import CheckpointError

T = TypeVar("T")


def to_names(tree: object) -> dict[str, Any]:
    """The leaves of a tree by flat name, as in a checkpoint.

    Raises:
        CheckpointError: If two leaves would have the same name, or a leaf can't be saved.

    Examples:
        >>> from treewright.checkpoint import to_names
        >>> to_names({"layers": [{"bias": 1.0}, {"bias": 2.0}]})
        {'layers.0.bias': 1.0, 'layers.1.bias': 2.0}
    """
    return parts_to_save(tree).values


def read_names(path: StrPath) -> dict[str, Any]:
    """Read the arrays of any safetensors file, as numpy arrays by name; the input of `from_names`.

    Args:
        path: The file.

    Raises:
        OSError: If it can't be opened or read.
        CheckpointDamagedError: If it is not a safetensors file, or is truncated.
        CheckpointError: If it has a dtype that NumPy does not have.

    Examples:
        >>> import tempfile, os
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> from treewright.checkpoint import from_names, read_names
        >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
        >>> save_file({"layer.w": np.ones(2, np.float32)}, path)
        >>> from_names(read_names(path), like={"layer": {"w": jnp.zeros(2)}})
        {'layer': {'w': Array([1., 1.], dtype=float32)}}
    """
    path = local_path(path)
    arrays: dict[str, Any] = {}
    with open_safetensors(path) as (_, entries, read_bytes), translate_read_errors(str(path)):
        for name, entry in entries.items():
            if entry["dtype"] not in CODES:
                raise CheckpointError(f"{name!r} in {path} has the dtype {entry['dtype']}, which NumPy does not have.")
            arrays[name] = read_bytes(name).view(DTYPES[CODES[entry["dtype"]]]).reshape(entry["shape"])
    return arrays


def from_names(values: Mapping[str, Any], *, like: T, allow_cast: bool = False, strict: bool = True) -> T:
    """Build a tree like `like` from leaves by flat name, such as the arrays in a different program's file.

    Args:
        values: Arrays and numbers by name, as returned by `to_names`. They are copied.
        like: A live or abstract tree. The result has its structure, statics and shardings.
        allow_cast: Whether values may be cast to the leaf's dtype.
        strict: Whether names that only one side has are errors.

    Raises:
        CheckpointMismatchError: If names, shapes or dtypes differ.
        CheckpointError: If a value can't be a leaf, or nothing would be loaded.
        TypeError: If `values` is not a mapping, such as a path.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> from_names({"w": jnp.ones(2)}, like={"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            "from_names needs a dict of arrays by name. To load a file: from_names(read_names(path), like=tree)."
        )
    options = check_options(like, {"allow_cast": allow_cast, "strict": strict})
    return tree_from_values(parts_to_save(like, abstract=True).manifest.nodes, values, like, options)
