"""Trees as arrays by flat name, and back: for files of other programs."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from treewright.checkpoint.arrays import DTYPES
from treewright.checkpoint.file import StrPath, local_path, opened, reading
from treewright.checkpoint.fit import checked_options, filled
from treewright.checkpoint.tree import parts_to_save

T = TypeVar("T")

# The dtypes of safetensors that its numpy reader does not know, by ours.
_CODES = MappingProxyType({"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"})


def to_names(tree: object) -> dict[str, Any]:
    """The leaves of a tree by the flat names under which checkpoints keep them.

    Raises:
        CheckpointError: If two leaves would have one name, or one can't be saved.

    Examples:
        >>> from treewright.checkpoint import to_names
        >>> to_names({"layers": [{"bias": 1.0}, {"bias": 2.0}]})
        {'layers.0.bias': 1.0, 'layers.1.bias': 2.0}
    """
    return parts_to_save(tree).values


def read_names(path: StrPath) -> dict[str, Any]:
    """The arrays in any safetensors file, as numpy arrays by name: the input of `from_names`.

    Args:
        path: The file. One that holds fp8 takes twice its size in memory while it is read.

    Raises:
        OSError: If it can't be opened or read.
        CheckpointDamagedError: If it is not a safetensors file, or is cut short.
        ImportError: If safetensors is not installed.

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
    with opened(path) as file, reading(str(path)):
        names = list(file.keys())
        others = {name for name in names if file.get_slice(name).get_dtype() in _CODES}
        arrays = {name: None if name in others else file.get_tensor(name) for name in names}
        if others:
            from safetensors import deserialize

            for name, entry in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
                if name in others:
                    dtype = DTYPES[_CODES[entry["dtype"]]]
                    arrays[name] = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return arrays


def from_names(values: Mapping[str, Any], *, like: T, allow_cast: bool = False, strict: bool = True) -> T:
    """A tree like `like` with these leaves, by flat name: the way from files of other programs.

    Args:
        values: Arrays and numbers by name, as `to_names` gives them. They are copied.
        like: A live or abstract tree, whose structure, statics and shardings the result has.
        allow_cast: Whether a value may have another dtype than the leaf, and is cast to it.
        strict: Whether names that only one side has are errors.

    Raises:
        CheckpointMismatchError: If names, shapes or dtypes differ.
        CheckpointError: If a value can't be a leaf, or nothing would be loaded.
        TypeError: If `values` is a path or anything else than arrays by name.

    Examples:
        >>> from treewright.checkpoint import from_names
        >>> from_names({"w": jnp.ones(2)}, like={"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    if not isinstance(values, Mapping):
        raise TypeError("from_names takes arrays by name. Of a file: from_names(read_names(path), like=tree).")
    return filled(values, like, checked_options(like, {"allow_cast": allow_cast, "strict": strict}))
