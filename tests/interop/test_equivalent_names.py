"""The tables of names on the pages of docs/migrating: complete for equinox and flax.struct, and every name exists."""

from __future__ import annotations

import enum
import functools
import importlib
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.experimental.checkify
import optax
import pytest

import treewright
from tests.public_names import public_names
from treewright import Module, TrainState
from treewright._names_elsewhere import INSTEAD

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.slow
PAGES = Path(__file__).parents[2] / "docs" / "migrating"
OURS = {
    **{name.rpartition(".")[2]: value for name, value in public_names().items()},
    **{module.__name__: module for module in (enum, functools, jax, optax, treewright)},
    "checkify": jax.experimental.checkify,
    "eqx": eqx,
    "nn": eqx.nn,
    "model": Module,
    "state": TrainState,
    "print": print,
    "repr": repr,
}
# The words of the tables that are no names: arguments, methods and attributes.
WORDS = {"converter", "train", "in_axes", "tree", "key", "__check_init__", "__doc__", "__wrapped__"}


def rows(page: str) -> list[list[list[str]]]:
    """The code in each cell of the page's table of equivalents, whose last column is `here`."""
    text = (PAGES / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"^\|[^\n]*\| here \|\n\|[-|]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def dotted_names(cells: list[str]) -> list[str]:
    """The dotted name at the start of each piece of code; none for `==` and numbers."""
    return [match[1] for code in cells if (match := re.match(r"@?([A-Za-z_][\w.]*)", code))]


def theirs_in(page: str) -> list[str]:
    return dotted_names([code for *theirs, _ in rows(page) for cell in theirs for code in cell])


def is_name_in(namespace: object, name: str) -> bool:
    try:
        operator.attrgetter(name)(namespace)
    except AttributeError:
        return False
    return True


def public(module: ModuleType) -> set[str]:
    """The names for users: neither library has `__all__`, so imports and type variables are left out."""
    return {
        name
        for name, value in vars(module).items()
        if name[0] != "_"
        and not isinstance(value, TypeVar)
        and getattr(value, "__module__", "").partition(".")[0] == module.__name__.partition(".")[0]
    }


def test_the_page_for_equinox_has_each_of_its_names() -> None:
    names = {name.partition(".")[0] for name in theirs_in("equinox.md")}

    assert len(public(eqx)) > 45
    assert sorted((public(eqx) | {"nn", "debug"}) - names) == []
    assert [name for name in theirs_in("equinox.md") if not is_name_in(eqx, name)] == []


def test_the_page_for_flax_struct_has_each_of_its_names() -> None:
    flax = pytest.importorskip("flax")
    for module in ("struct", "serialization"):
        importlib.import_module(f"flax.{module}")
    names = theirs_in("flax-struct.md")

    assert sorted({f"struct.{name}" for name in public(flax.struct)} - {*names}) == []
    assert [name for name in names if not is_name_in(flax, name)] == []


def test_the_names_of_nnx_and_linen_on_their_page_exist() -> None:
    flax = pytest.importorskip("flax")
    for module in ("nnx", "linen"):
        importlib.import_module(f"flax.{module}")
    names = [name for name in theirs_in("flax-modules.md") if name.startswith(("nnx.", "linen."))]

    assert len(names) > 20
    assert [name for name in names if not is_name_in(flax, name)] == []


@pytest.mark.parametrize("page", ["equinox.md", "flax-struct.md", "flax-modules.md"])
def test_the_names_in_the_column_here_exist(page: str) -> None:
    names = dotted_names([code for *_, here in rows(page) for code in here])

    def exists(name: str) -> bool:
        first, _, rest = name.partition(".")
        return first in WORDS or (first in OURS and (not rest or is_name_in(OURS[first], rest)))

    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize("name", ["tree_at", "filter_jit", "tree_serialise_leaves", "static_field", "nn", "PyTreeNode"])
def test_importing_a_name_of_another_library_says_what_to_write(name: str) -> None:
    with pytest.raises(ImportError, match=rf"^treewright has no {name}\. Instead: .+\.$"):
        exec(f"from treewright import {name}")
    with pytest.raises(AttributeError, match=rf"^treewright has no {name}\. Instead: .+\.$"):
        getattr(treewright, name)
    assert not hasattr(treewright, name)


def test_no_public_name_has_a_replacement_and_those_of_equinox_are_on_its_page() -> None:
    assert {*INSTEAD} & {*treewright.__all__} == set()
    assert {name for name in INSTEAD if hasattr(eqx, name)} <= {*theirs_in("equinox.md")}
