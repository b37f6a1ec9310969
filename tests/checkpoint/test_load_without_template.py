"""Loading without a template returns plain lists, tuples, dicts and leaves, whatever the file contains."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.engines import assert_same
from tests.checkpoint.forged_files import document_in, forge
from tests.checkpoint.models import STATICS, Color, Settings, Size, net, train_state
from treewright import Module, Static, static
from treewright.checkpoint import from_names, load, save, to_names
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ONE = jnp.ones(2)
NET: Any = {
    "layers": tuple({"kernel": layer.kernel, "bias": layer.bias} for layer in net().layers),
    "count": net().count,
}

# Saved trees, and the result without a template
PLAIN: dict[str, tuple[Any, Any]] = {
    "arrays and numbers": ([ONE, 1, 2.0, True, 1j, np.ones(1)], [ONE, 1, 2.0, True, 1j, np.ones(1)]),
    "containers": (
        {"a": [1], "b": (2,), "c": None, "d": {}, "e": ()},
        {"a": [1], "b": (2,), "c": None, "d": {}, "e": ()},
    ),
    "one leaf": (jnp.arange(3), jnp.arange(3)),
    "a node": (net(), NET),
    "a static": ({"s": Static("x"), "a": 1}, {"s": {}, "a": 1}),
    "a named tuple": (Size(1, 2), {"width": 1, "height": 2}),
    "kinds of dict": (
        [OrderedDict([("b", 1), ("a", 2)]), defaultdict(list, a=1)],
        [{"b": 1, "a": 2}, {"a": 1}],
    ),
    "keys of JSON": ({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0}),
    "other keys": ({Color.RED: 1}, {"Color.RED": 1}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_load_without_a_template_returns_plain_containers(name: str, engine: Any) -> None:
    saved, expected = PLAIN[name]
    engine.save(saved)

    assert_same(engine.load(), expected)


def test_load_without_a_template_returns_parts_keys_and_refs(tmp_path: Path) -> None:
    state = train_state()
    save(tmp_path / "x", state)
    moments = load(tmp_path / "x", part="opt_state")
    assert_same(moments[0]["mu"]["layers"][0]["kernel"], state.opt_state[0].mu.layers[0].kernel)

    save(tmp_path / "x", {"key": jax.random.key(3), "ref": jax.new_ref(ONE)})
    found = load(tmp_path / "x")
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(3))).all()
    assert_same(found["ref"][...], ONE)


def test_leaves_by_name_fit_any_tree(tmp_path: Path) -> None:
    save(tmp_path / "x", net())

    assert_same(from_names(to_names(load(tmp_path / "x")), like=net()), net())


def test_load_runs_no_code_of_a_class_with_or_without_a_template(tmp_path: Path) -> None:
    ran: list[str] = []

    class Loud(Module):
        x: Any
        name: str = static(default="a")

        def __init__(self, x: Any) -> None:
            ran.append("__init__")
            self.x = x
            self.name = "b"

        def __check_init__(self) -> None:
            ran.append("check")

    like = Loud(1)
    save(tmp_path / "x", like)
    ran.clear()

    assert load(tmp_path / "x") == {"x": 1}
    assert load(tmp_path / "x", like=like).name == "b"
    assert not ran


# Forged

FORMS: tuple[Any, ...] = (
    *(["namedtuple"], [[1], 2], ["name", ["os"]], ["name"], ["described"], ["node"], ["node", 1, 2], ["enum"], {}),
    *(["Pattern", "(" * 5000, 0], ["Mesh", ["a"], [2**40], ["Auto"]], ["FrozenArray", "int8", [2**60], ""]),
    *(["int", "f" * 10**5], ["scalar", ["dtype", "i4,f8"], ["bytes", ""]], ["date", "2024-13-01"], ["float", "x"]),
    ["frozenset", *range(1 << 61, (1 << 61) + 60_000)],
    json.loads("[" * 900 + "]" * 900),
    json.loads('["tuple", ' * 900 + "1" + "]" * 900),
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form)[:25])
def test_a_forged_static_imports_nothing(form: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(1, {"a": 1}))

    def change(document: Any) -> None:
        document["nodes"][0]["statics"].update(value=form)
        document["nodes"][1].update(keys=[form])

    forge(tmp_path / "x", change)
    before, start = set(sys.modules), time.monotonic()
    assert load(tmp_path / "x") == {"x": {"a": 1}}
    with pytest.raises(CheckpointError, match=r"\.value: static .* saved, 1 in the tree"):
        load(tmp_path / "x", like=Settings(1, {"a": 1}))
    assert time.monotonic() - start < 10
    assert set(sys.modules) == before


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "b", "node", "name", "tuple", "described", "scalar", "dtype", "os:system"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "name"]), inner, max_size=3),
    max_leaves=8,
)


def changed_anywhere(document: Any, draw: Any) -> Any:
    """A document with another value, or none, at a place that is drawn."""
    if not isinstance(document, list | dict) or not document or draw(st.integers(0, 4)) == 0:
        return draw(JSON)
    key = draw(st.sampled_from(sorted(document) if isinstance(document, dict) else range(len(document))))
    copy: Any = document.copy()
    if draw(st.integers(0, 5)) == 0:
        del copy[key]
    else:
        copy[key] = changed_anywhere(document[key], draw)
    return copy


FORGEABLE: Any = {
    "w": np.arange(1000.0),
    "b": [jnp.ones(3), 2],
    "key": jax.random.key(0),
    "s": Settings(STATICS),
    "t": Size(1, 2),
}


@given(data=st.data())
@pytest.mark.filterwarnings("ignore::treewright.errors.CheckpointWarning")
def test_a_forged_manifest_imports_nothing(data: Any, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("forged") / "x"
    save(path, FORGEABLE)
    forge(path, json.dumps(changed_anywhere(document_in(path), data.draw)))  # to draw may import something
    before, start = set(sys.modules), time.monotonic()

    others: list[str] = []
    ways: list[dict[str, Any]] = [{}, {"part": "s"}, {"like": FORGEABLE}]
    ways.append({"like": FORGEABLE, "strict": False, "on_static": "warn"})
    for options in ways:
        try:
            load(path, **options)
        except CheckpointDamagedError:
            continue
        except CheckpointError as error:  # The manifest may be valid, for a different tree or version.
            others.append("" if "like" in options else str(error))
    assert all(re.match(r"$|.*(format version|this JAX does not have|enable_x64)|part=", text) for text in others)
    assert time.monotonic() - start < 10
    assert set(sys.modules) == before
