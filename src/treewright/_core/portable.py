"""A value as text that another process would write, too: without addresses, with digests of data and code if asked."""

import dataclasses
import enum
import hashlib
import re
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from treewright._core import functions as reach
from treewright._core.functions import class_of
from treewright._core.text import MANY, FullText, array_text, names_in, shape_text

_KEPT = 4000  # characters that are kept
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,}")
# Classes as `Any`: after `isinstance` with them the parts of a value are still `Any`, and not unknown.
_OBJECT: Any = object
_DICT: Any = dict
_MAPPING: Any = Mapping
_SEQUENCES: Any = (tuple, list)


def portable_text(value: object, *, exact: bool) -> str:
    """A text without addresses, which is equal in another process for values that do the same.

    Functions that can be imported count by their name, others by their name and what they hold and read; objects of
    classes that are not known here count by their `repr`. Fields that are local to a process are left out. An exact
    text also tells apart values that do not do the same, where Python and the libraries are the same: by the code of
    functions, the data of arrays, and all items of containers. Another is bounded, and fit to be kept.
    """
    written = _PortableText(exact=exact).of(value)
    return written if exact else written[:_KEPT]


def portable_text_and_modules(value: object) -> tuple[str, set[str]]:
    """The exact text of a value, and the modules of the functions and classes in it."""
    walk = _PortableText(exact=True)
    return walk.of(value), walk.modules


def full_name(value: Any) -> str:
    """`module.name` of a class or function; classes of Python itself without a module."""
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}".removeprefix("builtins.")


class _PortableText(FullText):
    def __init__(self, *, exact: bool) -> None:
        super().__init__(with_module=True)
        self.exact = exact
        self.most = None if exact else MANY
        self.modules: set[str] = set()

    def name(self, value: Any) -> str | None:
        kind = class_of(value)
        if kind in reach.CONSTANTS:
            return repr(value)
        if isinstance(value, enum.Enum):
            return f"{self.full_name(kind)}.{value.name or value.value}"
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        if isinstance(value, type) or (callable(value) and reach.import_path(value) is not None):
            of_the_user = self.exact and isinstance(value, types.FunctionType) and not reach.library_made(value)
            code = f"#{_digest(self.code(value).encode())}" if of_the_user else ""  # hosts may have it from other files
            return f"{self.full_name(value)}{code}"
        return value.__name__ if isinstance(value, types.ModuleType) else None

    def array(self, value: Any) -> str | None:
        if not self.exact:
            return array_text(value)
        shown = shape_text(value.dtype, value.shape)
        if not getattr(value, "is_fully_addressable", True):
            return shown
        data = jax.random.key_data(value) if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key) else value
        return f"{shown}#{_digest(np.asarray(data).tobytes())}"

    def opened(self, value: Any) -> str:
        kind = class_of(value)
        if hasattr(kind, "__node_spec__"):
            names = [field.name for field in kind.__node_spec__.fields if not field.local]
            return self.call(kind, ((name, getattr(value, name)) for name in names))
        if dataclasses.is_dataclass(kind):
            return self.call(kind, ((field.name, getattr(value, field.name)) for field in dataclasses.fields(kind)))
        if hasattr(value, "__func__") and hasattr(value, "__self__"):
            return f"{self.of(value.__self__)}.{value.__func__.__name__}"
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, _MAPPING) and not isinstance(value, _DICT):
            return self.entries(value, self.full_name(kind))
        if isinstance(value, _SEQUENCES) and kind not in _SEQUENCES and not names_in(kind):
            return self.bracketed(f"{self.full_name(kind)}(", map(self.of, value), ")")
        if callable(value) and reach.wrapped_by(value) is not None:
            return f"{self.full_name(kind)}({self.of(reach.wrapped_by(value))})"
        return super().opened(value)

    def function(self, value: types.FunctionType) -> str:
        held = self.joined(self.arguments((reach.held_by(value) | reach.read_by(value)).items()))
        code = f"#{_digest(self.code(value).encode())}" if self.exact else ""
        return f"{self.full_name(value)}{code}({held})"

    def full_name(self, value: Any) -> str:
        self.modules.add(str(getattr(value, "__module__", None)))
        return full_name(value)

    def code(self, function: types.FunctionType | types.CodeType) -> str:
        parts, constants = reach.program_of(function)
        texts = (self.code(one) if isinstance(one, types.CodeType) else self.of(one) for one in constants)
        return " ".join([parts, *texts])

    def class_name(self, kind: type[Any]) -> str:
        return self.full_name(kind)

    def whole(self, value: Any) -> str:
        kind = class_of(value)
        held = self.held(value) if self.exact else {}
        if held and kind.__repr__ is _OBJECT.__repr__:
            return self.call(kind, held.items())
        try:
            shown = _ADDRESS.sub("", repr(value))
        except Exception:  # noqa: BLE001  a user's `__repr__`; the class alone must do
            shown = "..."
        attributes = f" ({self.joined(self.arguments(held.items()))})" if held else ""
        return f"{self.full_name(kind)}: {shown}{attributes}"

    def held(self, value: Any) -> dict[str, Any]:
        """What an object of a user's class consists of, whatever its `repr` tells, and without what it only keeps."""
        kind = class_of(value)
        if reach.library_class(kind) or reach.of_python(kind):
            return {}
        state = sorted(reach.state_of(value).items())
        return {name: part for name, part in state if not reach.is_cached_property(kind, name)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
