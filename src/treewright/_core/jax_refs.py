"""What of JAX's refs is young, with what is lost in a version of JAX without it."""

import inspect
from typing import Any

import jax
from jax.core import Tracer

from treewright._core.jax_private import typeof, untyped_jax

# Refs, which got these names shortly before 0.9. `isinstance(x, jax.Ref)` takes 20 times as long as `is_ref`.
Ref: Any = jax.Ref
_AbstractRef: Any = untyped_jax.ref.AbstractRef
# Young: 0.9 has no kinds of refs. Without this one, what `jax.checkpoint` computes again is written again, and a
# function under `grad` can write what depends on the weights only behind `stop_gradient`.
STATE_KIND = "no_grad_no_remat" if "kind" in inspect.signature(jax.new_ref).parameters else None


def new_ref(value: Any, kind: str | None = STATE_KIND) -> Any:
    """A ref that holds a copy of an array, by default for state: not differentiated, and written once under remat."""
    return untyped_jax.new_ref(value, **({} if kind is None else {"kind": kind}))


def kind_of_ref(ref: Any) -> str | None:
    """The kind that a ref was made with."""
    kind: str | None = getattr(typeof(ref), "kind", None)
    return kind


def is_ref_type(aval: Any) -> bool:
    """Whether JAX's type of a value is that of a ref."""
    return isinstance(aval, _AbstractRef)


def is_ref(value: Any) -> bool:
    """Whether a value is a ref, an array that changes in place, or the tracer of one."""
    return type(value) is Ref or (isinstance(value, Tracer) and is_ref_type(typeof(value)))


def content_of(leaf: Any) -> Any:
    """What a ref holds now, as an array that later writes do not change; anything else as it is."""
    return leaf[...] if is_ref(leaf) else leaf
