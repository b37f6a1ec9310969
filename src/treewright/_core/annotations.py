"""The annotations of a class, as each version of Python has them."""

import dis
import inspect
import itertools
import sys
import traceback
import typing
from collections.abc import Callable
from typing import Any

from treewright._core.functions import code_of
from treewright.errors import NodeDefinitionError

if sys.version_info >= (3, 14):
    import annotationlib


def own_annotations(cls: type[Any]) -> dict[str, Any]:
    """What the class body itself annotates, as `dataclasses` reads it: what can't be told yet stays unevaluated."""
    if sys.version_info >= (3, 14):
        try:
            return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
        except Exception as error:
            raise NodeDefinitionError(_unreadable(cls, error)) from error
    else:  # before 3.14
        annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
        return annotations


def declarers(cls: type[Any]) -> dict[str, type[Any]]:
    """The nearest dataclass in the MRO whose body annotates a field, by the field's name."""
    bases = [base for base in reversed(cls.__mro__) if "__dataclass_fields__" in vars(base)]
    return {name: base for base in bases for name in own_annotations(base)}


def resolved(annotation: Any, cls: type[Any]) -> Any:
    """The type that a string annotation in the body of `cls` names; the string itself where it can't be told yet."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if not isinstance(text, str):
        return annotation
    module = sys.modules.get(cls.__module__)
    try:
        return eval(text, {} if module is None else vars(module), dict(vars(cls)))  # noqa: S307
    except Exception:  # noqa: BLE001  a forward reference, or a name that only checkers import
        return text


def annotation_text(annotation: Any, cls: type[Any]) -> str:
    """An annotation as a user writes it in the body of `cls`, or three dots where that can't be told."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if isinstance(text, str):
        return text
    shown = inspect.formatannotation(text, cls.__module__)
    # jax.Array has the __module__ of where it is made.
    shown = shown.replace("jax.jaxlib._jax.", "jax.").replace("collections.abc.", "")
    return "..." if "._" in shown or "<" in shown else shown


def signature_of(cls: type[Any]) -> inspect.Signature:
    """The signature of a class, in which what can't be told yet stays unevaluated."""
    if sys.version_info >= (3, 14):
        signature = inspect.signature(cls, annotation_format=annotationlib.Format.FORWARDREF)
    else:  # before 3.14
        signature = inspect.signature(cls)
    return signature


def annotate_init(init: Callable[..., None], cls: type[Any], types: dict[str, Any]) -> None:
    """Annotate a generated `__init__` as `dataclasses` does: from 3.14 on when asked, so that later names are found."""
    if sys.version_info >= (3, 14):
        setattr(init, "__annotate__", _lazy_annotations(cls, tuple(types)))  # noqa: B010  no checker knows it
    else:  # before 3.14
        init.__annotations__ = {**types, "return": None}


if sys.version_info >= (3, 14):

    def _lazy_annotations(cls: type[Any], names: tuple[str, ...]) -> Callable[[Any], dict[str, Any]]:
        """An `__annotate__` that gives what the class and its bases annotate, in the format that is asked for."""
        kinds = annotationlib.Format
        read: Callable[..., dict[str, Any]] = annotationlib.get_annotations

        def __annotate__(format: Any, /) -> dict[str, Any]:  # noqa: N807  its name in Python
            if format not in {kinds.VALUE, kinds.FORWARDREF, kinds.STRING}:
                raise NotImplementedError(format)
            declared: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                declared.update(read(base, format=format))
            given: dict[str, Any] = {name: declared[name] for name in names if name in declared}
            return {**given, "return": "None" if format == kinds.STRING else None}

        __annotate__.__qualname__ = f"{cls.__qualname__}.__init__.__annotate__"
        __annotate__.__module__ = cls.__module__
        return __annotate__

    def _unreadable(cls: type[Any], error: Exception) -> str:
        code = code_of(cls.__annotate__)
        frames = traceback.walk_tb(error.__traceback__)
        names = [_annotated_after(frame.f_code, frame.f_lasti) for frame, _ in frames if frame.f_code is code]
        place = ".".join([cls.__qualname__, *filter(None, names[-1:])])
        return (
            f"{place}: the annotation can't be read: evaluating it raised {type(error).__name__}({error}). Correct it, "
            f"or write it as a string. Only names may be unknown when the class is made."
        )

    def _annotated_after(code: Any, offset: int) -> str | None:
        """The name that the code of an `__annotate__` stores next: it loads a value, then its name, and stores."""
        steps = [step for step in dis.get_instructions(code) if step.offset >= offset]
        stores = (name for name, step in itertools.pairwise(steps) if step.opname == "STORE_SUBSCR")
        return next((name.argval for name in stores), None)
