"""A node class among Python's other classes: whose `__init__` runs, abstract methods, a bare `Module()`, doctests."""

import abc
import copy
import dataclasses
import doctest
import itertools
import pickle
import sys
import types
import typing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import typing_extensions

import treewright
from treewright import Module, Static, pytree_dataclass, static

# Whose __init__ runs


class Mixin:
    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", ("mixin", x))  # past the one of a frozen dataclass


class Cooperative:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tag = "cooperative"


class Own(Module):
    x: Any

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", ("own", x))


class Generated(Module):
    x: Any


class Plain:
    """Without an `__init__`."""


class Speaks(typing.Protocol):
    """Into which `typing` puts an `__init__`."""


class Declares(typing_extensions.Protocol):
    """The same of another library."""


@dataclasses.dataclass(frozen=True)
class Data:
    x: Any


@dataclasses.dataclass(frozen=True)
class DataWithInit:
    x: Any

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", ("data", x))


SAYS: dict[type[Any], Any] = {Mixin: ("mixin", 1.0), Own: ("own", 1.0), DataWithInit: ("data", 1.0)}
SILENT = [Plain, Speaks, Declares]
BASES = [Mixin, Own, Generated, DataWithInit, Data, *SILENT]


def bases_with_a_node() -> list[tuple[type[Any], ...]]:
    pairs = [pair for pair in itertools.permutations(BASES, 2) if {Own, Generated} & set(pair)]
    behind_one = [(silent, *pair) for silent, pair in itertools.product(SILENT, pairs) if silent not in pair]
    return [*pairs, *behind_one]


def test_the_init_that_runs_is_the_first_in_the_order_of_bases_as_in_python() -> None:
    for bases in bases_with_a_node():
        cls: Any = types.new_class("Node", bases)
        first = next(base for base in bases if base not in SILENT)
        node = cls(1.0)
        assert node.x == SAYS.get(first, 1.0), bases
        assert jax.tree.structure(node) == jax.tree.structure(cls(2.0)), bases  # it is sealed
        assert types.new_class("Sub", (cls,))(1.0).x == node.x, bases


def test_a_decorated_class_does_not_inherit_the_init_of_a_mixin() -> None:
    @pytree_dataclass
    class Base:
        x: Any

    @pytree_dataclass
    class Decorated(Mixin, Base):  # as with dataclasses
        pass

    assert Decorated(1.0).x == 1.0


def test_a_cooperative_mixin_reaches_the_generated_init_behind_it() -> None:
    class Net(Cooperative, Generated):
        tag: str = static(default="")

    class Bare(Cooperative, Module):
        tag: str = static(default="")

    class Behind(Module, Cooperative, init=False):
        tag: str = static(default="")

    assert (Net(1.0).x, Net(1.0).tag, Bare().tag, Behind().tag) == (1.0, *["cooperative"] * 3)


def test_super_init_of_module_goes_on_to_the_bases_behind_it() -> None:
    class Net(Module, Mixin):
        x: Any

        def __init__(self) -> None:
            super().__init__(1.0)

    assert Net().x == ("mixin", 1.0)


# Abstract methods


def abstract(cls: Any) -> Any:
    """A message of Python's, from a class with the metaclass for it."""
    with pytest.raises(TypeError) as caught:
        cls()
    return str(caught.value)


@pytest.mark.parametrize("decorate", [lambda base: base, pytree_dataclass])
def test_an_abstract_method_is_enforced_without_abc_in_pythons_words(decorate: Any) -> None:
    def shape(bases: tuple[type[Any], ...]) -> Any:
        def run(self: Any) -> None: ...

        def width(self: Any) -> int: ...  # type: ignore[empty-body]

        body = {"run": abc.abstractmethod(run), "width": property(abc.abstractmethod(width))}
        return type("Shape", bases, body)

    ours = decorate(shape((object,) if decorate is pytree_dataclass else (Module,)))
    theirs = shape((abc.ABC,))

    assert abstract(ours) == abstract(theirs)
    half = {"__annotations__": {"width": int}, "width": static(default=3)}
    assert "run" in abstract(decorate(type("Half", (ours,), half)))
    assert "width" not in abstract(decorate(type("Half", (ours,), half)))
    whole: Any = decorate(type("Whole", (decorate(type("Half", (ours,), half)),), {"run": lambda self: self.width}))
    assert (whole().run(), ours.__abstractmethods__) == (3, {"run", "width"})


# A bare Module()


def test_a_bare_module_is_a_node_without_fields() -> None:
    bare: Any = Module()

    assert repr(bare) == "Module()"
    assert jax.tree.leaves([bare, 1.0]) == [1.0]
    assert jax.tree_util.tree_leaves_with_path({"a": bare}) == []
    assert jax.tree.map(lambda leaf: leaf, bare) == bare == Module()
    assert hash(bare) == hash(Module())
    assert copy.copy(bare) == copy.deepcopy(bare) == pickle.loads(pickle.dumps(bare)) == treewright.replace(bare)
    assert jax.jit(lambda module, x: (module, x))(bare, 2.0) == (bare, 2.0)
    assert Static(bare) == Static(Module())
    assert treewright.diff(bare, Module()) == []
    assert str(treewright.summary(bare)).startswith("Module\n")
    assert (treewright.count(bare), isinstance(bare, Module)) == (0, True)
    assert Module().tree_flatten() == bare.tree_flatten()


def test_a_bare_module_is_frozen_and_takes_nothing() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="Module has no field of this name"):
        Module().x = 1.0  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="takes exactly one argument"):
        Module(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bare: Any = Module()
    with pytest.raises(TypeError, match="Module has no field x"):
        treewright.replace(bare, x=1)


# __repr__


def test_super_repr_and_a_wrapped_repr_show_the_fields() -> None:
    class Net(Module):
        kernel: Any
        inner: Any = None

        def __repr__(self) -> str:
            return f"<{super().__repr__()}>"

    def wrapped(cls: Any) -> Any:  # as beartype does with every method of a class
        own = cls.__repr__
        cls.__repr__ = lambda self: own(self)
        return cls

    @wrapped
    @pytree_dataclass
    class Point:
        x: Any

    Net.__qualname__ = "Net"
    assert repr(Net(jnp.ones(3), Net(1.0))) == "<Net(kernel=f32[3], inner=<Net(kernel=1.0, inner=None)>)>"
    assert repr(Point(1.0)) == f"{Point.__qualname__}(x=1.0)"
    cyclic: list[Any] = []
    cyclic.append(Net(cyclic))
    assert repr(cyclic[0]) == "<Net(kernel=[...], inner=None)>"


# Doctests


SOURCE = '''
import jax
from treewright import Module

class Net(Module):
    """A class.

    >>> Net(1.0).x
    1.0
    """
    x: float

    def method(self):
        """A method.

        >>> Net(1.0).method()
        2.0
        """
        return self.x + 1.0

    @jax.jit
    def jitted(self):
        """A jitted one.

        >>> float(Net(1.0).jitted())
        3.0
        """
        return self.x + 2.0

    @property
    def half(self):
        """A property.

        >>> Net(1.0).half
        0.5
        """
        return self.x / 2

    def __call__(self):
        """The call.

        >>> Net(1.0)()
        7.0
        """
        return 7.0
'''


def test_doctests_of_methods_are_found_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with_doctests.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import with_doctests  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    try:
        found = doctest.DocTestFinder(exclude_empty=True).find(with_doctests)
        runner = doctest.DocTestRunner()
        for test in found:
            runner.run(test)
    finally:
        del sys.modules["with_doctests"]
    names = {test.name.removeprefix("with_doctests.Net") for test in found}
    assert names == {"", ".method", ".jitted", ".half", ".__call__"}
    assert (runner.summarize(verbose=False).failed, runner.tries) == (0, 5)
