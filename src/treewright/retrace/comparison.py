"""Compare the signatures of two calls: their differences, with the reason for each."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from treewright._base.text import Verbatim, short_text
from treewright._reports import mesh_text
from treewright._trees.causes import Cause, class_of, one_static, snapshot
from treewright._trees.diff import Comparator, differences, static_difference
from treewright._trees.difference import ABSENT, Difference, DifferenceKind
from treewright.retrace.jax_private import FLAX_NODES, OF_PMAP
from treewright.retrace.signature import Signature

_EXPLAINED = Comparator(exactly=False)


def call_differences(old: Signature, new: Signature, *, reasons: bool = True) -> list[Difference]:
    """The differences between two calls: arguments, then settings and options."""
    differences = list(_argument_differences(old, new, _EXPLAINED._replace(reasons=reasons)))
    if any(difference.kind in {"added", "removed"} for difference in differences):  # flax repeats them in a static
        differences = [difference for difference in differences if str(difference.path[-1]) != FLAX_NODES]
    if old.settings is not new.settings:
        differences += _setting_differences(old.settings, new.settings)
    if old.batch != new.batch and len(old.batch) == len(new.batch):
        left, right = (batch[0] if len(batch) == 1 else batch for batch in (old.batch, new.batch))
        differences.append(Difference(("the size of vmap",), left, right, "batch"))
    changed = {difference.path for difference in differences}  # a mesh with other axes is a setting
    options = _by_name("option", old.options, new.options)
    return differences + [difference for difference in options if difference.path not in changed]


def _argument_differences(old: Signature, new: Signature, compare: Comparator) -> Iterator[Difference]:
    """The differences of the arguments, by name.

    Of `def f(x, k=1)`, in two calls:

    f(x), f(x, 2)        k is not passed, and then passed: 1 (default) -> 2
    f(x, 2), f(x, k=2)   by position, and then by keyword
    f(x, 2), f(x, 3)     static: two values; traced: a leaf in both, so no difference
    """
    for name in dict.fromkeys((*old.passed, *new.passed)):
        a, b = old.arguments.get(name, ABSENT), new.arguments.get(name, ABSENT)
        default, is_static = new.defaults.get(name, ABSENT), name in old.statics | new.statics
        if a is ABSENT or b is ABSENT:
            left, right = default if a is ABSENT else a, default if b is ABSENT else b
            if is_static and default is not ABSENT and not one_static(left, right):
                yield static_difference((name,), left, right, compare)
            else:
                yield _presence_difference(name, a, b, default)
        elif (name in old.statics) is not (name in new.statics):
            reasons = ("traced before, and static now", "static before, and traced now")
            yield Difference((name,), a, b, "class", Cause("other statics", reasons[name in old.statics]))
        else:
            if name in old.statics and not (class_of(a) is class_of(b) and one_static(a, b)):
                yield static_difference((name,), a, b, compare)
            if old.passed[name] != new.passed[name]:
                yield Difference((name,), old.passed[name], new.passed[name], "passing")
            if name not in old.statics:
                yield from differences(a, b, values=False, path=(name,), reasons=compare.reasons)


def _presence_difference(name: str, a: Any, b: Any, default: Any) -> Difference:
    """The difference between a call with an argument and one without it."""
    if default is ABSENT:
        return Difference((name,), a, b, "added" if a is ABSENT else "removed", Cause("argument", ""))
    passed = b if a is ABSENT else a
    text = Verbatim(f"{short_text(default)} (default)")
    is_none_replaced = default is None and getattr(passed, "cls", type(passed)) is not type(None)
    cause = Cause("None replaced" if is_none_replaced else "default replaced", "")
    return Difference((name,), text if a is ABSENT else a, text if b is ABSENT else b, "class", cause)


def _by_name(kind: DifferenceKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name), new.get(name)
        if a is not b and not one_static(a, b):
            values = _settings(a, b) if kind == "setting" else (snapshot(a), snapshot(b))
            is_text = type(values[0]) is Verbatim
            yield (
                Difference((name,), *values, kind) if is_text else static_difference((name,), *values, _EXPLAINED, kind)
            )


def _setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """The differences of settings. Those of `pmap`, if only one of the calls went through it, are one."""
    under = ["pmap" if any(name.endswith(OF_PMAP) for name in each) else "jit" for each in (old, new)]
    if under[0] == under[1]:
        yield from _by_name("setting", old, new)
        return
    reason = Cause("other transformations", "")
    yield Difference(("the transformation",), Verbatim(under[0]), Verbatim(under[1]), "setting", reason)
    common = [{name: value for name, value in each.items() if not name.endswith(OF_PMAP)} for each in (old, new)]
    yield from _by_name("setting", *common)


def _settings(old: Any, new: Any) -> tuple[Any, Any]:
    """Two settings as reports show them: a mesh, or the innermost of `with mesh:`, by its axes if these differ."""
    sides = [next(reversed(value), None) if type(value) is tuple else value for value in (old, new)]
    if any(isinstance(side, jax.sharding.Mesh | jax.sharding.AbstractMesh) for side in sides):
        left, right = map(mesh_text, sides)
        return (Verbatim(left), Verbatim(right)) if left != right else (snapshot(sides[0]), snapshot(sides[1]))
    axes = [dict(value.axis_sizes) if hasattr(value, "axis_sizes") else value for value in (old, new)]
    return snapshot(axes[0]), snapshot(axes[1])  # the named axes from vmap and pmap have sizes


def without_placement(differences: list[Difference]) -> list[Difference]:
    """The differences that make `jit` retrace; for the others it recompiles the same trace."""
    return [difference for difference in differences if difference.kind not in {"placement", "option", "batch"}]
