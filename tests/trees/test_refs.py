"""Refs in trees: what makes them, what reads them, what refuses them, and what JAX does with a node that holds one."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from treewright import (
    AsRef,
    Module,
    adopt,
    allclose,
    at,
    buffer,
    combine,
    count,
    diff,
    edit,
    explain_retraces,
    field,
    find_aliases,
    from_refs,
    loop,
    nbytes,
    node_at,
    partition,
    pytree_dataclass,
    replace,
    spec_like,
    split_key_like,
    stack,
    static,
    summary,
    to_refs,
    trainable,
    unstack,
)
from treewright._core.jax_refs import STATE_KIND
from treewright.errors import (
    LoopStateError,
    MissingPlaceError,
    NodeDefinitionError,
    ShardingError,
    StaticFieldError,
    TracedComparisonError,
)
from treewright.sharding import (
    abstract_state,
    assert_same_on_all_processes,
    partition_specs,
    program_report,
    sharded_init,
    sharding_report,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Norm(Module):
    scale: jax.Array = field(sharding=("features",))
    mean: AsRef = buffer(sharding=("features",))

    def __call__(self, x: jax.Array) -> jax.Array:
        mean = 0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(x.mean(0))
        self.mean[...] = mean
        return (x - mean[None]) * self.scale[None]


def norm(value: float = 0.0, width: int = 4) -> Norm:
    return Norm(jnp.ones(width), jnp.full(width, value))


X = jnp.ones((5, 4))


def loss_of(norm: Norm, x: jax.Array) -> jax.Array:
    return norm(x).sum()


# Made and read


def test_to_refs_and_from_refs_give_back_every_kind_of_array_and_number() -> None:
    tree = {
        "array": jnp.arange(3),
        "numpy": np.ones((2, 2), np.float32),
        "scalar": np.float32(2),
        "key": jax.random.key(1),
        "bool": True,
        "int": 3,
        "float": 0.5,
        "complex": 1j,
        "none": None,
        "empty": jnp.zeros((0, 2), jnp.bfloat16),
    }
    refs = to_refs(tree)
    arrays = from_refs(refs)

    assert jax.tree.structure(refs) == jax.tree.structure(tree) == jax.tree.structure(arrays)
    assert all(isinstance(leaf, jax.Ref) for leaf in jax.tree.leaves(refs))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arrays))
    assert not any(leaf.aval.weak_type for leaf in jax.tree.leaves(refs))
    assert {d.kind for d in diff(arrays, jax.tree.map(jnp.asarray, tree))} == {"weak_type"}  # of the numbers


def test_a_ref_holds_a_copy_and_what_was_read_does_not_change() -> None:
    array = jnp.ones(2)
    refs = to_refs({"w": array})
    before = from_refs(refs)
    refs["w"][...] = jnp.zeros(2)

    assert array.tolist() == before["w"].tolist() == [1, 1]
    assert from_refs(refs)["w"].tolist() == [0, 0]


def test_refs_stay_the_same_refs_and_no_code_of_a_class_runs() -> None:
    node = norm()

    assert to_refs(node).mean is node.mean
    assert isinstance(from_refs(node).mean, jax.Array)
    assert from_refs(node).scale is node.scale


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        (None, [True, True, True]),
        ("bias", [False, True, False]),
        ("layers", [False, False, True]),
        ("**[0]", [False, False, True]),
        (lambda tree: tree["bias"], [False, True, False]),
        (lambda tree: (tree["bias"], tree["w"]), [True, True, False]),
        (lambda path, leaf: leaf.ndim == 1, [False, True, True]),
    ],
)
def test_where_chooses_which_arrays_become_refs_and_come_back(where: Any, chosen: list[bool]) -> None:
    tree = {"w": jnp.ones((2, 2)), "bias": jnp.ones(2), "layers": [jnp.ones(1)]}
    order = ("w", "bias", "layers")

    made = to_refs(tree, where)
    back = from_refs(to_refs(tree), where)

    refs = [isinstance(jax.tree.leaves(made[name])[0], jax.Ref) for name in order]
    arrays = [isinstance(jax.tree.leaves(back[name])[0], jax.Array) for name in order]
    assert refs == arrays == chosen


def test_what_is_not_an_array_does_not_become_a_ref() -> None:
    with pytest.raises(TypeError, match=r"^\['f'\] is sum, and only arrays and numbers become refs\. Make it a static"):
        to_refs({"f": sum, "w": jnp.ones(2)})
    with pytest.raises(TypeError, match=r"^The tree is f32\[2\]\(abstract\), and only arrays"):
        to_refs(jax.eval_shape(lambda: jnp.ones(2)))
    nowhere: list[Any] = [lambda path, _: path == "['b']", "['nothing']", lambda tree: tree["nothing"]]
    for where in nowhere:
        with pytest.raises(MissingPlaceError, match=r"^where= chooses no leaf of the dict\.$"):
            to_refs({"w": jnp.ones(2), "nothing": None}, where)
    with pytest.raises(MissingPlaceError, match=r"has no place"):
        from_refs({"w": jnp.ones(2)}, "bias")


def test_a_shared_array_becomes_two_refs_and_a_shared_ref_is_found() -> None:
    shared = jnp.ones(2)
    ref = jax.new_ref(shared)

    assert find_aliases(to_refs([shared, shared])) == []
    assert find_aliases({"a": ref, "b": [ref], "c": jax.new_ref(shared)}) == [("['a']", "['b'][0]")]
    with pytest.raises(ValueError, match="only one reference to a mutable array"):
        jax.jit(lambda tree: tree["a"][...])({"a": ref, "b": ref})


# Fields


def test_a_field_of_a_ref_takes_arrays_numbers_and_refs() -> None:
    ref = jax.new_ref(jnp.ones(4))

    assert Norm(jnp.ones(4), ref).mean is ref
    assert Norm(jnp.ones(4), np.ones(4)).mean[...].tolist() == [1] * 4
    assert Norm(jnp.ones(4), 0).mean.dtype == jnp.int32
    assert replace(norm(), mean=jnp.full(4, 3.0)).mean[...].tolist() == [3] * 4
    with edit(norm()) as draft:
        draft.mean = jnp.full(4, 2.0)
    assert draft.mean[...].tolist() == [2] * 4
    assert at(norm(), "mean").set(ref).mean is ref
    assert at(norm(3.0), "mean").apply(lambda ref: ref[...] + 1).mean[...].tolist() == [4] * 4


def test_a_ref_is_refused_as_a_static_and_as_a_default() -> None:
    class Fixed(Module):
        table: Any = static()

    with pytest.raises(StaticFieldError, match=r"table is static but holds a ref, f32\[2\]\(ref\)\.\nWhat a ref"):
        Fixed(jax.new_ref(jnp.ones(2)))
    with pytest.raises(NodeDefinitionError, match=r"Shared\.mean has a ref as default: one ref that all instances"):

        @pytree_dataclass
        class Shared:
            mean: Any = jax.new_ref(jnp.ones(2))


def test_a_function_of_a_library_that_captured_a_ref_is_a_static_by_itself() -> None:
    class Keeps(Module):
        transformation: Any = static(compare="content")

    def reads(ref: Any) -> Any:
        return lambda: ref[...]

    one = reads(jax.new_ref(jnp.ones(2)))
    assert jax.tree.structure(Keeps(one)) == jax.tree.structure(Keeps(one))
    assert jax.tree.structure(Keeps(one)) != jax.tree.structure(Keeps(reads(jax.new_ref(jnp.ones(2)))))


# Shown, counted, compared


class Refs(Module):
    ref: Any


def test_repr_and_summary_show_type_and_not_values() -> None:
    node = norm()

    assert repr(node) == "Norm(scale=f32[4], mean=f32[4](ref))"
    assert summary(node).plain.splitlines()[-2:] == [
        ".mean   Norm   buffer  [4]    f32 (ref)      4     16",
        "8 numbers, 32 bytes; 4 of them in buffers",
    ]
    assert (count(node), nbytes(node)) == (8, 32)
    shown: list[str] = []
    jax.jit(lambda node: shown.append(repr(node)))(node)
    assert shown == ["Norm(scale=f32[4](traced), mean=f32[4](traced ref))"]


def test_refs_are_equal_where_they_hold_the_same() -> None:
    assert norm(1.0) == norm(1.0)
    assert norm(1.0) != norm(2.0)
    assert norm(1.0) != from_refs(norm(1.0))
    assert norm(1.0) != norm(1.0, width=3)
    with pytest.raises(TypeError, match=r"unhashable type: Refs\.ref holds an array, f32\[2\]\(ref\)"):
        hash(Refs(jax.new_ref(jnp.ones(2))))


def test_traced_refs_are_not_compared() -> None:
    with pytest.raises(TracedComparisonError, match=r"Refs\.ref is traced"):
        jax.jit(lambda a, b: a == b)(Refs(norm().mean), Refs(norm().mean))


@pytest.mark.parametrize(
    ("left", "right", "line"),
    [
        (norm(1.0), norm(2.0), ".mean (value): Ref{float32[4]} -> Ref{float32[4]}; 4 of 4 elements differ, by at most"),
        (norm(), from_refs(norm()), ".mean (class): Ref{float32[4]} -> float32[4]; a ref and an array are two types"),
        ([jax.new_ref(jnp.ones(2))], [jax.new_ref(jnp.ones(3))], "[0] (shape): Ref{float32[2]} -> Ref{float32[3]};"),
        ([jax.new_ref(jnp.ones(2))], [jax.new_ref(jnp.ones(2, int))], "[0] (dtype): Ref{float32[2]} -> Ref{int32[2]}"),
        ([jax.new_ref(jnp.ones(2))], [(jnp.ones(2),)], "[0] (class): Ref{float32[2]} -> "),
    ],
)
def test_diff_reads_what_refs_hold(left: Any, right: Any, line: str) -> None:
    assert diff(left, left) == []
    (difference,) = diff(left, right)

    assert str(difference).startswith(line)


def test_allclose_reads_what_refs_hold_and_takes_an_array_for_a_ref() -> None:
    assert allclose(norm(1.0), norm(1.0 + 1e-7))
    assert allclose(norm(1.0), from_refs(norm(1.0)))
    assert str(allclose(norm(1.0), norm(2.0))) == (
        "not close in 1 place:\n  .mean: 4 of 4 elements are apart, most at [0]: 1.0 and 2.0, by 1"
    )
    assert str(allclose(norm(1.0), from_refs(norm(1.0, 3)))).count("(class)") == 1
    assert not allclose([jax.new_ref(jax.random.key(0))], [jax.new_ref(jax.random.key(1))])


# Copied


def test_copy_shares_refs_and_deepcopy_and_pickle_do_not() -> None:
    node = norm(1.0)
    shallow, deep, loaded = copy.copy(node), copy.deepcopy(node), pickle.loads(pickle.dumps(node))
    jax.jit(loss_of)(node, X * 3)

    assert shallow.mean is node.mean
    # In JAX 0.12 a pickled ref can't be used in any way, JAX's own included.
    for other in (deep, loaded) if jax.__version_info__ < (0, 12) else (deep,):
        assert other.mean[...].tolist() == [1] * 4
        jax.jit(loss_of)(other, X * 3)
        assert other == node


# Other trees


def test_masks_and_settings_take_refs_for_leaves() -> None:
    node = norm()
    weights: Any
    buffers: Any
    weights, buffers = partition(node, trainable)
    settings: Any = spec_like(node, 0, {"mean": 1})

    assert (weights.mean, buffers.mean) == (None, node.mean)
    assert combine(weights, buffers).mean is node.mean
    assert (settings.scale, settings.mean) == (0, 1)
    assert split_key_like(jax.random.key(0), node).mean.shape == ()


@pytest.mark.parametrize("take", [lambda tree: stack([tree, tree]), unstack, lambda tree: node_at(tree, 0)])
def test_copies_that_would_take_writes_in_silence_are_refused(take: Callable[[Any], Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^\.mean is f32\[4\]\(ref\)\. .* a copy, and writes to a copy would not reach"
    ):
        take(norm())


def test_layers_are_stacked_as_arrays_and_their_refs_are_written_under_scan() -> None:
    layers = to_refs(stack([from_refs(norm(float(index))) for index in range(3)]), "mean")

    def body(x: jax.Array, layer: Norm) -> tuple[jax.Array, None]:
        return layer(x), None

    expected, x = [norm(float(index)) for index in range(3)], X
    for layer in expected:
        x = layer(x)
    out, _ = jax.jit(lambda layers, x: jax.lax.scan(body, x, layers))(layers, X)

    assert allclose(out, x)
    assert allclose(layers.mean[...], jnp.stack([layer.mean[...] for layer in expected]))


def test_adopt_takes_refs_for_arrays() -> None:
    ref = jax.new_ref(jnp.ones(2))

    assert jax.tree.leaves(adopt({"state": ref, "name": "layer"})) == [ref]


def test_a_loop_says_what_to_do_with_refs() -> None:
    def step(state: Norm) -> tuple[Norm, None]:
        return state, None

    with pytest.raises(LoopStateError, match=r"^state\.mean is f32\[4\]\(ref\), and step would have to return it") as e:
        loop(step, norm())
    assert "jax.jit(step) with the state as an argument, and only the metrics returned." in str(e.value)
    assert loop(step, from_refs(norm()))() is None


# Under JAX


def of_weights(transform: Callable[..., Any]) -> Callable[[Norm, jax.Array], Any]:
    """A function of the weights of a `Norm`, transformed, while its buffers are refs."""

    def run(node: Norm, x: jax.Array) -> Any:
        weights, buffers = partition(node, trainable)
        return transform(lambda weights: loss_of(combine(weights, buffers), x))(weights)

    return run


def under_cond(node: Norm, x: jax.Array) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda: loss_of(node, x), lambda: 0.0)


def under_scan(node: Norm, x: jax.Array) -> Any:
    return jax.lax.scan(lambda carry, x: (carry, loss_of(node, x)), 0.0, x[None])


def under_while(node: Norm, x: jax.Array) -> Any:
    return jax.lax.fori_loop(0, 1, lambda _, loss: loss + loss_of(node, x), 0.0)


def under_vmap(node: Norm, x: jax.Array) -> None:
    ensemble = to_refs(stack([from_refs(node)] * 2), "mean")
    jax.vmap(loss_of)(ensemble, jnp.stack([x, x]))
    node.mean[...] = ensemble.mean[1]


def under_remat(node: Norm, x: jax.Array) -> None:
    if STATE_KIND is None:
        pytest.skip("before its refs had kinds, JAX wrote again what it computed again")
    of_weights(lambda f: jax.grad(jax.checkpoint(f)))(node, x)


MORE: list[Callable[..., Any]] = [
    of_weights(jax.grad),
    jax.jit(of_weights(jax.value_and_grad)),
    under_cond,
    under_scan,
    under_while,
    under_vmap,
]


@pytest.mark.parametrize(
    "way",
    [
        *(jax.jit(loss_of), under_remat, jax.jit(under_scan)),
        *(pytest.param(way, marks=pytest.mark.exhaustive) for way in (*MORE, *(jax.jit(way) for way in MORE[:4]))),
    ],
)
def test_what_is_written_within_a_transformation_reaches_the_ref_once(way: Callable[..., Any]) -> None:
    expected, node = norm(), norm()
    expected(X)
    way(node, X)

    assert allclose(node, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda node: jax.jit(lambda node: node)(node),
        lambda node: jax.lax.scan(lambda node, _: (node, None), node, None, 1),
        lambda node: jax.grad(loss_of)(node, X),
        lambda node: jax.vmap(lambda x: node(x))(jnp.stack([X, X])),
        lambda node: jax.eval_shape(norm),
    ],
    ids=["returned", "carried", "differentiated", "written for each of a batch", "made"],
)
def test_what_the_page_says_that_jax_refuses_it_does(call: Callable[[Norm], object]) -> None:
    with pytest.raises(Exception, match=r"(?i)mutable array|cotangent|Ref-typed|unbatched array ref|ValAccum"):
        call(norm())


def test_a_class_that_makes_refs_is_made_under_jit_as_arrays() -> None:
    made = to_refs(jax.jit(lambda: from_refs(norm(2.0)))(), "mean")

    assert made == norm(2.0)
    assert jax.eval_shape(lambda: from_refs(norm())).mean.shape == (4,)


def test_a_ref_in_place_of_an_array_traces_again_and_the_report_says_so() -> None:
    reports: list[Any] = []
    f = jax.jit(lambda node: node.mean[...].sum())
    with explain_retraces(on_report=reports.append):
        f(norm())
        f(norm())
        f(from_refs(norm()))
        f(norm(width=3))

    text = "\n".join(map(str, reports))
    assert len(reports) == 2
    assert "node.mean: Ref{float32[4]} -> float32[4]" in text
    assert "a ref and an array are two types; make the ref once, before the first call: treewright.to_refs" in text
    assert "Ref{float32[3]}" in text


# Sharding

MESH = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
RULES = {"features": "x"}


def test_refs_are_split_as_their_field_says() -> None:
    arrays = sharded_init(lambda: from_refs(norm()), mesh=MESH, rules=RULES)
    node = to_refs(arrays, "mean")

    assert str(partition_specs(node, MESH, RULES).mean) in {"P('x',)", "PartitionSpec('x',)"}
    assert node.mean.sharding == arrays.mean.sharding
    assert ".mean   f32[4](ref)  x" in str(sharding_report(node, MESH, RULES))
    jax.jit(loss_of)(node, X)
    assert node.mean.sharding == arrays.mean.sharding
    assert_same_on_all_processes(node, values=True)


def test_the_report_on_a_program_says_which_arguments_change_in_place() -> None:
    def step(node: Norm, x: jax.Array) -> dict[str, jax.Array]:
        return {"loss": loss_of(node, x)}

    report = program_report(jax.jit(step), norm(), X)

    assert [(one.path, one.donated) for one in report.arguments] == [
        ("args[0].scale", "no"),
        ("args[0].mean", "in place"),
        ("args[1]", "no"),
    ]
    assert [one.path for one in report.results] == ["['loss']"]


@pytest.mark.parametrize("make", [sharded_init, abstract_state])
def test_what_is_made_sharded_can_not_return_refs(make: Callable[..., Any]) -> None:
    with pytest.raises(
        ShardingError, match=r"^Norm\.mean is a ref, and the function is traced, which returns no refs\."
    ):
        make(norm, mesh=MESH, rules=RULES)
