"""Mismatches: every difference is listed by path, with old and new, before an array is read."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.engines import ByFile, assert_same
from tests.checkpoint.models import Net, Other, Settings, net, scaled, twice
from treewright import replace
from treewright.checkpoint import from_names, load, save, to_names
from treewright.checkpoint.arrays import DTYPES, keeps_kind
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow


X = jnp.zeros((2, 3))
SETTINGS, ARRAY = f"{Settings.__module__}:Settings", "float32[2,3] (array)"
KEY, OF_MODELS = "uint32[2] (key threefry2x32)", twice.__module__
OTHER_SIZE = "Different shape: convert the array in migrate=. Or load the saved shapes, with this tree as like=:"
BY_PATH: dict[str, tuple[Any, Any, list[str]]] = {
    "missing": ({"a": X}, {"a": X, "b": X}, [f"['b']: not saved, the tree has {ARRAY}"]),
    "unexpected": ({"a": X, "b": X}, {"a": X}, [f"['b']: saved as {ARRAY}, not in the tree"]),
    "None": ({"a": X}, {"a": None}, [f"['a']: saved as {ARRAY}, not in the tree"]),
    "name": (
        {"a": X},
        {"b": X},
        [f"['a']: saved as {ARRAY}, not in the tree", f"['b']: not saved, the tree has {ARRAY}"],
    ),
    "shape": ([X], [X.T], ["[0]: shape (2, 3) saved, (3, 2) in the tree"]),
    "dtype": ([X], [X.astype("bfloat16")], ["[0]: dtype float32 saved, bfloat16 in the tree"]),
    "both": (
        [X],
        [jnp.zeros(2, int)],
        ["[0]: shape (2, 3) saved, (2,) in the tree", "[0]: dtype float32 saved, int32 in the tree"],
    ),
    "kind": ([1.0], [jnp.ones(1)], ["[0]: kind float64[] (float) saved, float32[1] (array) in the tree"]),
    "key": (
        [jax.random.key(0)],
        [jax.random.key(0, impl="rbg")],
        [f"[0]: kind {KEY} saved, uint32[4] (key rbg) in the tree"],
    ),
    "key's data": (
        [jax.random.key(0)],
        [jax.random.key_data(jax.random.key(0))],
        [f"[0]: kind {KEY} saved, uint32[2] (array) in the tree"],
    ),
    "static": (net(), replace(net(), width=4), [".width: static 3 saved, 4 in the tree"]),
    "type of a static": (Settings(1), Settings(True), [".value: static 1 saved, True in the tree"]),
    "zeros": (Settings(0.0), Settings(-0.0), [".value: static 0.0 saved, -0.0 in the tree"]),
    "function": (
        Settings(twice),
        Settings(net),
        [f".value: static {OF_MODELS}.twice saved, {OF_MODELS}.net in the tree"],
    ),
    "class": (
        net(),
        Other(net().layers, net().count),
        [f": class {Net.__module__}:Net saved, {Other.__module__}:Other in the tree"],
    ),
    "node for a dict": (
        Settings(1, {"y": X}),
        {"x": {"y": X}},
        [f": class {SETTINGS} saved, dict in the tree", ".value: static 1 saved, nothing in the tree"],
    ),
    "static to nothing": (
        {"a": Settings(1, None)},
        {"a": None},
        [f"['a']: class {SETTINGS} saved, NoneType in the tree", "['a'].value: static 1 saved, nothing in the tree"],
    ),
    "node without leaves": (
        {"a": Settings(1, None)},
        {"b": Settings(2, None)},
        [
            f"['a']: saved as {SETTINGS}(value=1), not in the tree",
            f"['b']: not saved, the tree has {SETTINGS}(value=2)",
        ],
    ),
    "longer": ([1], [1, 2], ["[1]: not saved, the tree has int64[] (int)"]),
    "factory": (
        defaultdict(list, a=1),
        defaultdict(int, a=1),
        [".default_factory: static list saved, int in the tree"],
    ),
}


@pytest.mark.parametrize("name", BY_PATH)
def test_each_difference_is_reported_by_path_with_old_and_new(name: str, engine: Any) -> None:
    saved, like, expected = BY_PATH[name]
    engine.save({"there": 1, "tree": saved})

    with pytest.raises(CheckpointMismatchError) as caught:
        engine.load(like={"there": 1, "tree": like})
    assert list(map(str, caught.value.differences)) == [f"['tree']{line}" for line in expected]
    assert all(line in str(caught.value) for line in expected)


def test_all_differences_are_listed_in_one_error(engine: Any) -> None:
    engine.save({"a": X, "b": X, "c": X, "d": Settings(1), "e": 1})

    with pytest.raises(CheckpointMismatchError) as caught:
        engine.load(like={"a": X.T, "b": X.astype(np.float16), "d": Settings(2), "e": X, "f": X})
    assert str(caught.value) == (
        "The checkpoint does not fit the tree, 6 differences:\n"
        "  ['d'].value: static 1 saved, 2 in the tree\n"
        "  ['c']: saved as float32[2,3] (array), not in the tree\n"
        "  ['f']: not saved, the tree has float32[2,3] (array)\n"
        "  ['a']: shape (2, 3) saved, (3, 2) in the tree\n"
        "  ['b']: dtype float32 saved, float16 in the tree\n"
        "  ['e']: kind int64[] (int) saved, float32[2,3] (array) in the tree\n"
        "What to do:\n"
        "  If leaves moved: renamed={'c': 'f'}.\n"
        "  Different static: build the tree as it was saved, or on_static='warn' to keep the tree's static.\n"
        "  If a leaf was removed: strict=False.\n"
        "  If a leaf was renamed: renamed={'old.name': 'new.name'}. If it is new: add it in migrate=, or strict=False "
        "to keep the tree's value.\n"
        "  Different shape: convert the array in migrate=.\n"
        "  Different dtype, or a number in place of an array: allow_cast=True.\n"
        f"  {OTHER_SIZE}\n"
        "      values = to_names(load(path))\n"
        "      like = jax.tree.unflatten(jax.tree.structure(tree), [values[name] for name in to_names(tree)])"
    )


def test_no_array_is_read_before_the_manifest_is_compared(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": X})
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    with pytest.raises(CheckpointMismatchError, match="shape"):
        load(tmp_path / "x", like={"a": X.T})
    with pytest.raises(CheckpointDamagedError, match=r"\['a'\] is damaged: the digest of its bytes is"):
        load(tmp_path / "x", like={"a": X})


# Statics of other libraries


def of_flax(static: Any) -> Any:
    struct: Any = pytest.importorskip("flax.struct")

    @struct.dataclass
    class Layer:
        x: Any
        act: Any = struct.field(pytree_node=False)

    made: Any = Layer
    return made(1.0, static)


def of_equinox(static: Any) -> Any:
    import equinox as eqx

    class Layer(eqx.Module):
        x: Any
        act: Any = eqx.field(static=True)

    return Layer(1.0, static)


def of_jax(static: Any) -> Any:
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["act"])
    @dataclasses.dataclass
    class Layer:
        x: Any
        act: Any

    return Layer(1.0, static)


def of_nobody(static: Any) -> Any:
    @jax.tree_util.register_pytree_node_class
    class Layer:
        def __init__(self, x: Any, act: Any) -> None:
            self.x, self.act = x, act

        def tree_flatten(self) -> Any:
            return (self.x,), {"act": self.act}

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls(*children, **aux)

    return Layer(1.0, static)


LIBRARIES = [of_flax, of_equinox, of_jax, of_nobody]


@pytest.mark.parametrize("make", LIBRARIES)
def test_statics_of_other_libraries_are_compared(make: Any, engine: Any) -> None:
    path = "['layer']." if make is of_nobody else "['layer'].act"
    unequal: list[tuple[Any, Any]] = [("relu", "gelu"), (1, True), ((1, 2), (1, 3)), ("a", None)]
    trees = [tuple(make(static) for static in pair) for pair in unequal]
    engine.save({"layer": [one for one, _ in trees]})
    with pytest.raises(CheckpointMismatchError) as caught:
        engine.load(like={"layer": [other for _, other in trees]})
    assert [
        (one.path.replace(f"[{i}]", "", 1).removesuffix("<aux_data>"), one.kind, one.is_warning)
        for i, one in enumerate(caught.value.differences)
    ] == [(path, "static", False)] * 4
    found = engine.load(like={"layer": [other for _, other in trees]}, on_static="ignore")["layer"]
    assert [(one.act, one.x) for one in found] == [(other, 1.0) for _, other in unequal]

    equal = [
        "relu",
        [1, {"a": (2,)}],
        {"b": 1, "a": [2]},
        *([] if make is of_equinox else [np.arange(3)]),
    ]  # it warns of arrays
    engine.save_again([make(static) for static in equal])
    assert [one.x for one in engine.load(like=[make(static) for static in equal])] == [1.0] * len(equal)
    engine.save_again(make(scaled(1.0)))
    with pytest.warns(CheckpointWarning, match=r"factor=1\.0.*factor=2\.0"):
        engine.load(like=make(scaled(2.0)))


def test_a_different_dict_type_matches(engine: Any) -> None:
    engine.save(defaultdict[str, Any](list, a=1))

    for like in ({"a": 0}, OrderedDict(a=0)):
        assert engine.load(like=like) == {"a": 1}


# Very many


def test_a_message_with_many_differences_is_short(tmp_path: Path) -> None:
    saved = {f"{i}": np.zeros(1) for i in range(5000)}
    found = [np.zeros(2) if i % 2 else np.zeros(1, np.float32) for i in range(5000)]
    save(tmp_path / "x", saved)
    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path / "x", like=dict(zip(saved, found, strict=True)))

    lines = str(caught.value).splitlines()
    assert lines[0] == "The checkpoint does not fit the tree, 5,000 differences:"
    assert lines[1].startswith("  ['0']: dtype float64 saved, float32")
    assert "  and 4,980 more" in lines
    assert lines[-4:-2] == ["  Different dtype, or a number in place of an array: allow_cast=True.", f"  {OTHER_SIZE}"]
    assert len(str(caught.value)) < 2000
    assert len(caught.value.differences) == 5000
    with pytest.warns(CheckpointWarning, match=r"\['1015'\].*\n  and 4,980 more$"):
        load(tmp_path / "x", like={"0": saved["0"], "new": 1}, strict=False)


LETTERS = "".join(map(chr, range(0x4E00, 0x9E00)))
# What is saved, and a call that fails or warns. `o` is the name.
HOSTILE: dict[str, tuple[Callable[[str], Any], Callable[[Any, str], Any]]] = {
    "moved": (lambda o: {"state": {o: {"a": X, "b": X}}}, lambda e, o: e.load(like={"state": {"y": {"a": X, "b": X}}})),
    "a part": (lambda o: {o: {"a": X, "b": X}}, lambda e, _: e.load(like={"a": X, "b": X})),
    "shape and kind": (lambda o: {o: {"a": X, "b": X}}, lambda e, o: e.load(like={o: {"a": X.T, "b": 1}})),
    "a warning": (lambda o: {o: X, "b": X}, lambda e, _: e.load(like={"b": X}, strict=False)),
    "a static": (lambda o: Settings(o), lambda e, o: e.load(like=Settings(o + "y"))),
    "a static warns": (lambda o: Settings(o), lambda e, o: e.load(like=Settings(o + "y"), on_static="warn")),
    "an abstract leaf": (
        lambda _: {"a": X},
        lambda e, o: e.load(like={"a": X, o: jax.eval_shape(lambda: X)}, strict=False),
    ),
    "nothing fits": (lambda o: {o: X}, lambda e, _: e.load(like={"y": X}, strict=False)),
    "part=": (lambda o: {o: X}, lambda e, o: e.load(part=o + "y")),
    "no such part=": (lambda _: {"a": X}, lambda e, o: e.load(part=o)),
    "renamed=, not saved": (lambda o: {o: X}, lambda e, o: e.load(like={"a": X}, renamed={o + "y": "a"})),
    "renamed=, twice": (lambda o: {o: X, "a": X}, lambda e, o: e.load(like={"a": X}, renamed={"a": o})),
    "renamed=, no name": (lambda _: {"a": X}, lambda e, o: e.load(like={"a": X}, renamed={o: 3})),
    "an option": (lambda _: {"a": X}, lambda e, o: e.load(like={"a": X}, **{o: 3})),
    "on_static=": (lambda _: {"a": X}, lambda e, o: e.load(like={"a": X}, on_static=o)),
    "a leaf of migrate=": (lambda _: {"a": X}, lambda e, o: e.load(like={"a": X}, migrate=lambda _: {o: "text"})),
    "a result of migrate=": (lambda _: {"a": X}, lambda e, o: e.load(like={"a": X}, migrate=lambda _: o)),
    "names given": (lambda _: {"a": X}, lambda _, o: from_names({o: {"a": X}}, like={"a": X})),
    "no leaf": (lambda _: {"a": X}, lambda e, o: e.save_again({o: "text"})),
    "one name twice": (lambda _: {"a": X}, lambda e, o: e.save_again({o: {"b": X}, f"{o}.b": X})),
    "a value that does not fit": (lambda o: {o: 2**40}, lambda e, o: e.load(like={o: jnp.int32(0)})),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("x" * 2**17, id="long"),
        pytest.param("x" * 2**20, id="longer", marks=pytest.mark.exhaustive),
        pytest.param("\n" * 2**20, id="lines", marks=pytest.mark.exhaustive),
        pytest.param(LETTERS * 50, id="letters", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("case", HOSTILE)
def test_no_message_contains_a_long_name_whole(case: str, name: str, tmp_path: Path) -> None:
    tree, call = HOSTILE[case]
    engine = ByFile(tmp_path)
    engine.save(tree(name))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            call(engine, name)
        except (CheckpointError, TypeError, ValueError) as error:
            texts = [str(error)]
        else:
            texts = [str(each.message) for each in seen]
    assert texts
    assert max(map(len, texts)) < 20_000


# Advice, followed

TYPED, RAW = jax.random.key(3), jax.random.key_data(jax.random.key(3))
RBG, MANY = jax.random.key(3, impl="rbg"), jax.random.split(TYPED, 4)
TO_DATA, WRAP = "jax.random.key_data(leaf)", "jax.random.wrap_key_data(leaf, impl={!r})"
NEW = "jax.random.key(seed, impl={!r})"
KEYS: dict[str, tuple[Any, Any, str]] = {
    "data of a key": (TYPED, RAW, TO_DATA),
    "data of several": (MANY, jax.random.key_data(MANY), TO_DATA),
    "data of rbg": (RBG, jax.random.key_data(RBG), TO_DATA),
    "a key of data": (RAW, TYPED, WRAP.format("threefry2x32")),
    "several of data": (jax.random.key_data(MANY), MANY, WRAP.format("threefry2x32")),
    "rbg of data": (jax.random.key_data(RBG), RBG, WRAP.format("rbg")),
    "another implementation": (TYPED, RBG, NEW.format("rbg")),
    "the usual implementation": (RBG, TYPED, NEW.format("threefry2x32")),
    "a key of other data": (jax.random.key_data(RBG), TYPED, NEW.format("threefry2x32")),
    "a key of numbers": (jnp.zeros(2, int), RBG, NEW.format("rbg")),
}


@pytest.mark.parametrize("name", KEYS)
def test_the_advice_for_a_key_works(name: str, engine: Any) -> None:
    saved, wanted, line = KEYS[name]
    engine.save({"key": saved})
    with pytest.raises(CheckpointMismatchError) as caught:
        engine.load(like={"key": wanted})
    assert f"in migrate= with {line}." in str(caught.value)

    found = engine.load(
        like={"key": wanted}, migrate=lambda leaves: {"key": eval(line, {"jax": jax, "leaf": leaves["key"], "seed": 3})}
    )["key"]
    assert jax.typeof(found) == jax.typeof(wanted)
    one, other = (
        x if isinstance(x, np.ndarray) or x.dtype == np.uint32 else jax.random.key_data(x) for x in (found, wanted)
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wanted", [jnp.zeros(2, int), jnp.zeros(3)])
def test_a_key_for_numbers_has_no_conversion(wanted: Any, engine: Any) -> None:
    engine.save({"key": TYPED})
    with pytest.raises(CheckpointMismatchError, match=r"  A key was saved: build the tree with a key in this place\.$"):
        engine.load(like={"key": wanted})


def test_the_advice_for_placeholders_loads_the_saved_shapes(tmp_path: Path) -> None:
    path, saved = tmp_path / "x", {"layers": [X, X.T], "step": 1}
    save(path, saved)
    tree = jax.tree.map(jnp.float32, {"layers": [0, 0], "step": 1}) | {"step": 0}
    with pytest.raises(CheckpointMismatchError) as caught:
        load(path, like=tree)
    lines = [line.strip() for line in str(caught.value).splitlines() if " = " in line]
    assert len(lines) == 2

    names: dict[str, Any] = {"jax": jax, "path": path, "tree": tree, "load": load, "to_names": to_names}
    exec("\n".join(lines), names)
    found: Any = load(path, like=names["like"])
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, saved)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e8m0fnu"])
def test_an_int_is_cast_to_a_float_if_no_digit_is_lost(dtype: str) -> None:
    near = {sign * (2**power + more) for power in range(63) for more in (-1, 0, 1, 3) for sign in (1, -1)}
    for number in sorted(near):
        value = np.array(number, np.int64)
        with np.errstate(over="ignore"):
            cast = float(np.float64(number).astype(dtype))
        is_exact = np.isfinite(cast) and int(cast) == number
        if is_exact:
            from_names({"x": value}, like={"x": np.zeros((), dtype)}, allow_cast=True)
            continue
        with pytest.raises(CheckpointError, match=rf"contains {number}, which does not fit into {dtype} exactly"):
            from_names({"x": value}, like={"x": np.zeros((), dtype)}, allow_cast=True)


def test_each_dtype_is_cast_to_each_that_is_not_below_it() -> None:
    for saved, wanted in itertools.product(DTYPES, repeat=2):
        if keeps_kind(saved, wanted):
            one: Any = np.ones(1)
            like = {"x": one.astype(DTYPES[wanted])}
            assert_same(from_names({"x": one.astype(DTYPES[saved])}, like=like, allow_cast=True), like)
