"""A file without a template: classes come from the modules that the caller lists, and nothing in the file runs."""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint import models
from tests.checkpoint.engines import assert_same
from tests.checkpoint.forge import forge
from tests.checkpoint.models import Color, Net, Settings, Size, net, scaled, train_state, twice
from treewright import Module, Static, static, trainable
from treewright.checkpoint import load, save
from treewright.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def module_of(name: str, **values: Any) -> Any:
    """A module that nobody has imported, whose values say that they are its own."""
    module: Any = types.ModuleType(name)
    for attribute, value in values.items():
        value.__module__, value.__qualname__ = name, attribute
        setattr(module, attribute, value)
    return module


@pytest.mark.parametrize(
    "tree",
    [
        net(),
        {"list": [1, 2.0], "tuple": (True,), "none": None, "dict": {}, "named": Size(1, 2), "static": Static("x")},
        {1: jnp.ones(2), 2: np.zeros(3)},
        {Color.RED: 1},
        (),
        Settings(Net, [Settings(twice)]),
        [OrderedDict([("b", 1), ("a", 2)]), defaultdict[Any, Any](list, a=1), defaultdict(None, {2: 3})],
        [Static(trainable), Static(Module)],
    ],
)
def test_a_tree_is_made_from_its_file_alone(tree: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", tree)

    assert_same(load(tmp_path / "x", modules=[models, jax.nn]), tree)


class Declared(Module):
    __checkpoint_name__ = "lab.Declared"
    x: Any


def test_classes_come_from_modules_and_their_names_also_such_as_are_loaded_on_first_use(tmp_path: Path) -> None:
    lazy = module_of("tests.checkpoint.lazy")
    lazy.__all__, lazy.__getattr__ = ["Net", "Dense", "absent"], lambda name: getattr(models, name)
    cases: list[tuple[Any, Any]] = [
        *((Settings(1), modules) for modules in (models, models.__name__, (models.__name__,))),
        (net(), [lazy, jax.nn]),
        (Declared(2), module_of("elsewhere", Renamed=Declared)),
    ]
    for tree, modules in cases:
        save(tmp_path / "x", tree)
        assert_same(load(tmp_path / "x", modules=modules), tree)


def test_a_class_of_a_script_is_found_in_the_module_that_it_moved_to(tmp_path: Path) -> None:
    class Net(Module):
        x: Any

    Net.__module__, Net.__qualname__ = "__main__", "Net"
    save(tmp_path / "x", Net(1))

    assert load(tmp_path / "x", modules=module_of("lab", Net=Net)) == Net(1)


def test_a_name_of_two_classes_is_refused(tmp_path: Path) -> None:
    modules = [
        module_of(name, Same=type("Same", (Module,), {"__checkpoint_name__": "Same", "__annotations__": {"x": Any}}))
        for name in ("one", "two")
    ]
    save(tmp_path / "x", modules[0].Same(1))

    with pytest.raises(CheckpointError, match=r"'Same' names several things in the modules .*\(treewright, one, two\)"):
        load(tmp_path / "x", modules=modules)


def test_what_is_outside_the_modules_is_refused_with_all_places_and_what_to_do(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": net(), "b": Settings(Color.RED), "c": jnp.ones(2)})

    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "x")
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "The tree can't be made from its file alone. Load it into a tree, load(path, like=...), or see to this:"
    )
    assert lines[1] == (
        "  ['a']: 'tests.checkpoint.models:Net' is in none of the modules that may be used (treewright). If you trust "
        "the file, add the module that holds it: load(path, modules=[...])."
    )
    assert [line.partition(":")[0].strip() for line in lines[2:]] == ["['a'].layers[0], ['a'].layers[1]", "['b']"]
    save(tmp_path / "x", [Settings(jax.nn.relu)] * 5)
    with pytest.raises(CheckpointError, match=r"  \[0\], \[1\], \[2\], \.\.\.: the static value: 'jax\..*:relu' is in"):
        load(tmp_path / "x", modules=[models])
    for value in (jnp.dtype, print, (1, jax.nn.relu)):  # which the module only imports
        save(tmp_path / "x", Settings(value))
        with pytest.raises(CheckpointError, match="is in none of the modules that may be used"):
            load(tmp_path / "x", modules=[models])


def test_no_constructor_converter_or_check_runs(tmp_path: Path) -> None:
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

    home = module_of("home", Loud=Loud)
    save(tmp_path / "x", Loud(1))
    ran.clear()

    assert load(tmp_path / "x", modules=[home]).name == "b"
    assert not ran


def test_a_static_that_was_only_described_can_not_be_made_and_the_rest_can(tmp_path: Path) -> None:
    for value in (scaled(1.0), (1, scaled(1.0))):
        save(tmp_path / "x", Settings(value))

        with pytest.raises(CheckpointError, match="the static value: It was saved as a description only"):
            load(tmp_path / "x", modules=[models])
    save(tmp_path / "x", train_state())
    with pytest.raises(CheckpointError, match=r"the tree: the static tx: It was saved as a .* only, .*optax"):
        load(tmp_path / "x", modules=[models, "optax", "jax.nn"])
    moments = load(tmp_path / "x", part="opt_state", modules=[models, "optax", "jax.nn"])
    assert_same(moments, train_state().opt_state)


def test_a_class_with_other_fields_now_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x", [Settings(1), Size(1, 2)])
    other = type("Settings", (Module,), {"__annotations__": {"x": Any, "value": Any}, "__module__": models.__name__})
    size = type("Size", (Size,), {"_fields": ("a", "b"), "__module__": models.__name__})
    monkeypatch.setattr(models, "Settings", other)
    monkeypatch.setattr(models, "Size", size)

    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "x", modules=[models])
    assert "Settings has other fields now: x, value, saved were value, x." in str(caught.value)
    assert "Size has other fields now: a, b, saved were width, height." in str(caught.value)


def test_a_foreign_container_needs_a_template(tmp_path: Path) -> None:
    from flax.core import freeze

    tree: Any = freeze({"a": 1})
    save(tmp_path / "x", tree)

    with pytest.raises(CheckpointError, match="FrozenDict is neither a node nor a container of Python"):
        load(tmp_path / "x", modules=["flax"])
    assert load(tmp_path / "x", like=tree) == tree


# Forged


def assert_refused(path: Path, change: Any) -> None:
    """A file that is changed in this way is refused, and nothing of it is imported."""
    before = set(sys.modules)
    forge(path, change)
    with pytest.raises(CheckpointError, match=r"The tree can't be made from its file alone|The manifest is damaged"):
        load(path, modules=[models])
    assert {name for name in set(sys.modules) - before if name.startswith(("os", "posix", "evil"))} == set()


NOT_A_STATIC = [
    ["namedtuple", "os:system", "exit 1"],
    ["partial", ["name", "builtins:print"], [], {}],
    ["enum", "os:environ", "PATH"],
    ["bytes", 3],
    ["FrozenArray", "object", [1], "AAAA"],
    ["FrozenArray", "int8", [2**60], ""],
    ["dtype", "i4,f8"],
    ["dataclass", "tests.checkpoint.models:Setting", {"rate": 1}],
    ["dataclass", "tests.checkpoint.models:Net", {"width": 1}],
    ["name", "os:system"],
    ["unknown"],
    [[]],
    [],
    ["Pattern", "a" * 10_001, 0],
    ["Pattern", "(" * 5000, 0],
    ["date", "2024-13-01"],
    ["Fraction", 1, 0],
    ["UUID", "0"],
    ["ZoneInfo", "../../etc/passwd"],
    ["Decimal", "x"],
    ["range", 1, 2, 0],
    ["Mesh", ["a"], [2**40], ["Auto"]],
    ["NamedSharding", 1, 2, 3],
]


@pytest.mark.parametrize("form", NOT_A_STATIC, ids=lambda form: str(form)[:25])
def test_a_forged_static_or_key_calls_nothing_and_imports_nothing(form: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(1, {"a": 1}))

    assert_refused(tmp_path / "x", lambda document: document["nodes"][0]["statics"].update(value=form))
    assert_refused(tmp_path / "x", lambda document: document["nodes"][1].update(keys=[form]))


FORGED: list[dict[str, Any]] = [
    *(
        {"cls": name}
        for name in ("tests.checkpoint.models:twice", "evil:Class", "builtins:list", "", "a:b:c", "x" * 10**5)
    ),
    *({"statics": {"default_factory": form}} for form in (3, ["tuple"], ["described", "f"], ["name", "os:system"])),
    {"keys": [1, 1]},
]


@pytest.mark.parametrize("record", FORGED, ids=lambda record: str(record)[:40])
def test_a_forged_class_factory_or_key_calls_nothing_and_imports_nothing(record: Any, tmp_path: Path) -> None:
    saved: Any = Settings(1) if "cls" in record else defaultdict(list, a=1, b=2)
    save(tmp_path / "x", saved)
    assert load(tmp_path / "x", modules=[models]) == saved

    assert_refused(tmp_path / "x", lambda document: document["nodes"][0].update(record))
