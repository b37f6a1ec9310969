"""Laws of nodes, over generated classes: random fields, kinds, defaults, keyword-only fields, bases and nesting."""

import dataclasses
import inspect
import itertools
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treewright import Module, buffer, field, pytree_dataclass, replace, static

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "c", "kernel", "self", "cls", "statics", "store", "type", "x1", "children"]
LEAVES = st.one_of(st.integers(-3, 3), st.floats(allow_nan=False), st.none(), st.lists(st.integers(0, 3), max_size=2))
STATICS = st.one_of(
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from(
        [0.0, -0.0, 1.0, float("nan"), "a", "", None, (1, True), (1.0, (0.0,)), frozenset({1}), int, print]
    ),
    st.tuples(st.integers(0, 1), st.booleans()),
)
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Declared:
    """One generated field, as the class body declares it."""

    name: str
    kind: str
    has_default: bool
    default: Any
    kw_only: bool

    def line(self) -> Any:
        specifier = {"child": field, "static": static, "buffer": buffer}[self.kind]
        options: dict[str, Any] = {"kw_only": self.kw_only}
        if self.has_default and isinstance(self.default, list):
            options["default_factory"] = lambda: list(self.default)
        elif self.has_default:
            options["default"] = self.default
        return specifier(**options)  # type: ignore[operator]

    def plain_line(self) -> Any:
        """The same line for the standard library."""
        line = self.line()
        options = {"default": line.default, "default_factory": line.default_factory, "kw_only": self.kw_only}
        return dataclasses.field(**options)


@st.composite
def declarations(draw: st.DrawFn) -> list[Declared]:
    fields: list[Declared] = []
    defaults_began = False
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6)):
        kind = draw(st.sampled_from(["child", "child", "static", "buffer"]))
        kw_only = draw(st.booleans())
        has_default = draw(st.booleans()) or (defaults_began and not kw_only)
        defaults_began |= has_default and not kw_only
        fields.append(Declared(name, kind, has_default, draw(STATICS if kind == "static" else LEAVES), kw_only))
    return fields


@st.composite
def classes(draw: st.DrawFn) -> tuple[Any, list[Declared]]:
    """A node class, sometimes split over a base and a subclass, and its fields in order."""
    fields = draw(declarations())
    cut = draw(st.integers(0, len(fields)))
    as_module = draw(st.booleans())
    cls: Any = Module if as_module else object
    for part in (fields[:cut], fields[cut:]):
        body = {"__annotations__": {declared.name: Any for declared in part}}
        body |= {declared.name: declared.line() for declared in part}
        cls = type(cls)(f"Made{next(_numbers)}", (cls,), body)
        cls = cls if as_module else pytree_dataclass(cls)
    return cls, fields


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """A node and the values of its fields; children can be nodes themselves."""
    cls, fields = draw(classes())
    values = {
        declared.name: draw(STATICS if declared.kind == "static" else LEAVES)
        for declared in fields
        if not declared.has_default or draw(st.booleans())
    }
    return cls(**values), {declared.name: values.get(declared.name, declared.default) for declared in fields}


def are_identical(left: Any, right: Any) -> bool:
    return repr(left) == repr(right) and type(left) is type(right)


@given(nodes())
def test_every_field_reads_the_value_passed_to_it(node_and_values: tuple[Any, dict[str, Any]]) -> None:
    node, values = node_and_values
    for name, value in values.items():
        assert are_identical(getattr(node, name), value)


@given(nodes())
def test_unflatten_after_flatten_is_the_identity(node_and_values: tuple[Any, dict[str, Any]]) -> None:
    node, _ = node_and_values
    leaves, treedef = jax.tree.flatten(node)
    back = jax.tree.unflatten(treedef, leaves)
    assert back == node
    assert jax.tree.structure(back) == treedef
    children, aux = node.tree_flatten()
    assert type(node).tree_unflatten(aux, children) == node


@given(nodes())
def test_key_paths_agree_with_the_children_and_both_ways_of_flattening_agree(
    node_and_values: tuple[Any, dict[str, Any]],
) -> None:
    node, _ = node_and_values
    with_paths, treedef = jax.tree_util.tree_flatten_with_path(node)
    leaves, plain_treedef = jax.tree.flatten(node)
    assert treedef == plain_treedef
    assert [leaf for _, leaf in with_paths] == leaves
    for path, leaf in with_paths:
        value = getattr(node, path[0].name)
        for key in path[1:]:
            value = value[key.idx]
        assert value is leaf


@given(nodes(), st.data())
def test_treedefs_are_equal_exactly_when_class_and_statics_are(
    node_and_values: tuple[Any, dict[str, Any]], data: st.DataObject
) -> None:
    node, values = node_and_values
    statics = [f.name for f in type(node).__node_info__.statics]
    rebuilt = type(node)(**values)
    assert jax.tree.structure(rebuilt) == jax.tree.structure(node)
    for name in statics:
        other = data.draw(STATICS)
        changed = replace(node, **{name: other})
        equal = jax.tree.structure(changed) == jax.tree.structure(node)
        assert equal == are_identical(other, values[name])


@pytest.mark.filterwarnings("ignore:replace.. stores None:treewright.errors.ChildWarning")
@given(nodes(), st.data())
def test_replace_changes_only_the_named_fields(
    node_and_values: tuple[Any, dict[str, Any]], data: st.DataObject
) -> None:
    node, values = node_and_values
    for declared in type(node).__node_info__.fields:
        new = data.draw(STATICS if declared.is_static else LEAVES)
        changed = replace(node, **{declared.name: new})
        assert are_identical(getattr(changed, declared.name), new)
        for other in values.keys() - {declared.name}:
            assert are_identical(getattr(changed, other), values[other])
        assert are_identical(getattr(node, declared.name), values[declared.name])


@given(declarations())
def test_a_node_has_the_signature_of_the_frozen_dataclass_with_the_same_fields(fields: list[Declared]) -> None:
    annotations = {declared.name: Any for declared in fields}
    name = f"Made{next(_numbers)}"
    ours = pytree_dataclass(
        type(name, (), {"__annotations__": dict(annotations), **{d.name: d.line() for d in fields}})
    )
    theirs: Any = dataclasses.dataclass(frozen=True)(
        type(name, (), {"__annotations__": dict(annotations), **{d.name: d.plain_line() for d in fields}})
    )
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert ours.__doc__ == theirs.__doc__


@given(nodes(), nodes())
def test_nested_nodes_flatten_to_their_leaves(
    node_and_values: tuple[Any, dict[str, Any]], other: tuple[Any, dict[str, Any]]
) -> None:
    @pytree_dataclass
    class Outer:
        left: Any
        right: Any

    outer = Outer(node_and_values[0], [other[0]])
    assert jax.tree.leaves(outer) == jax.tree.leaves(node_and_values[0]) + jax.tree.leaves(other[0])
    assert jax.tree.map(lambda leaf: leaf, outer) == outer
