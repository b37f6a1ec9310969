"""An undecorated subclass of a decorated class: as Python made it until something uses it, and then a node."""

import copy
import dataclasses
import functools
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.export
import pytest

from treewright import Module, pytree_dataclass, static
from treewright._core import definition as make_class
from treewright._core.jax_private import is_tree_node
from treewright._core.spec import spec_of
from treewright.errors import NodeDefinitionError


@pytree_dataclass
class Base:
    x: Any
    mode: str = static(default="m")


def undecorated() -> Any:
    class Below(Base):
        y: Any = 2.0
        depth: int = static(default=3)

    return Below


class Kept(Base):
    """For other processes, which import it and make no instance first."""

    y: Any = 2.0
    depth: int = static(default=3)


class KeptInTreedef(Base):
    y: Any = 2.0
    depth: int = static(default=3)


class KeptInProgram(Base):
    y: Any = 2.0
    depth: int = static(default=3)


def test_until_then_the_class_is_not_registered_and_its_body_is_what_was_written() -> None:
    below = undecorated()

    assert not is_tree_node(below)
    assert isinstance(vars(below)["depth"], dataclasses.Field)
    below(1.0)
    assert is_tree_node(below)
    assert not isinstance(vars(below)["depth"], dataclasses.Field)


USES: dict[str, Callable[[Any], Any]] = {
    "an instance": lambda cls: cls(1.0),
    "fields": dataclasses.fields,
    "signature": inspect.signature,
    "the constructor": lambda cls: cls.__init__,
    "a subclass": lambda cls: type("Further", (cls,), {}),
    "the flattened form": lambda cls: cls.tree_unflatten(None, ()),
    "an empty instance of a pickle": lambda cls: cls.__reduce__(cls(1.0))[0](cls),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_makes_it_a_node(use: str) -> None:
    below = undecorated()

    try:
        USES[use](below)
    except TypeError as error:
        assert "tree_unflatten takes the aux_data of a" in str(error)  # noqa: PT017  it was asked, and is a node

    assert is_tree_node(below)
    assert [field.name for field in dataclasses.fields(below)] == ["x", "mode", "y", "depth"]
    assert str(inspect.signature(below)) == "(x: Any, mode: str = 'm', y: Any = 2.0, depth: int = 3) -> None"
    assert jax.tree.leaves(below(1.0)) == [1.0, 2.0]


def test_the_bases_of_a_node_are_made_first() -> None:
    class Further(undecorated()):  # type: ignore[misc]
        z: Any = 4.0

    assert jax.tree.leaves(Further(1.0)) == [1.0, 2.0, 4.0]

    @pytree_dataclass
    class Decorated(undecorated()):  # type: ignore[misc]
        z: Any = 4.0

    class Model(undecorated(), Module):  # type: ignore[misc]
        z: Any = 4.0

    assert jax.tree.leaves([Decorated(1.0), Model(1.0)]) == [1.0, 2.0, 4.0, 1.0, 2.0, 4.0]


def test_a_constructor_of_its_own_fills_the_node_from_the_first_instance_on() -> None:
    class Own(Base):
        y: Any

        def __init__(self, x: Any) -> None:
            super().__init__(x, "own")
            self.y = x + 1

        def __post_init__(self) -> None:
            raise AssertionError

    assert list(inspect.signature(Own.__init__).parameters) == ["self", "x"]
    assert not is_tree_node(Own)
    for _ in range(2):
        assert (jax.tree.leaves(Own(1.0)), Own(1.0).mode) == ([1.0, 2.0], "own")


def test_whoever_comes_second_finds_the_class_made() -> None:
    class Below(Base):
        y: Any = 2.0

    spec = spec_of(Below)

    assert make_class.first_use(Below) is spec  # as a thread does that waited for the lock


def test_post_init_of_the_class_or_of_its_base_runs_once() -> None:
    runs: list[str] = []

    class Below(Base):
        def __post_init__(self) -> None:
            runs.append("below")

    class Further(Below):
        y: Any = 0.0

    inherited: Any = Below.__post_init__
    inherited(None)
    Further(1.0)
    Below(1.0)
    assert runs == ["below"] * 3


def test_what_is_wrong_is_said_at_each_use_until_it_is_mended_and_nothing_is_registered() -> None:
    class Bad(Base):
        y: Any = static(default=0)

        def __setattr__(self, name: str, value: object) -> None: ...

    for _ in range(2):
        with pytest.raises(NodeDefinitionError, match="Bad is not a node yet: Cannot overwrite attribute __setattr__"):
            Bad(1.0)
    with pytest.raises(NodeDefinitionError, match="Bad is not a node yet"):
        type("Further", (Bad,), {})
    assert not is_tree_node(Bad)

    del Bad.__setattr__
    assert jax.tree.leaves(Bad(1.0)) == [1.0]


def test_a_plain_dataclass_decorator_says_nothing_new() -> None:
    @dataclasses.dataclass(frozen=True)
    class Below(Base):
        y: Any = 2.0
        depth: int = static(default=3)

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made.append((args, kwargs))
            return object.__new__(cls)

    made: list[Any] = []
    Below.__qualname__ = "Below"
    below = Below(1.0, depth=4)

    assert made == [((1.0,), {"depth": 4})]
    assert jax.tree.leaves(below) == [1.0, 2.0]
    assert str(inspect.signature(Below)) == "(x: Any, mode: str = 'm', y: Any = 2.0, depth: int = 3) -> None"
    assert (below == Below(1.0, depth=4), repr(below).endswith("depth=4)")) == (True, True)
    assert jax.tree.leaves(type("Further", (Below,), {})(1.0)) == [1.0, 2.0]


def test_a_post_init_below_a_dataclass_decorator_runs() -> None:
    @dataclasses.dataclass(frozen=True)
    class Below(Base):
        y: Any = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "y", self.x + 1)

    assert jax.tree.leaves(Below(1.0)) == [1.0, 2.0]


def test_what_is_wrong_below_a_dataclass_decorator_is_said_at_each_instance() -> None:
    @dataclasses.dataclass(frozen=True)
    class Bad(Base):
        sizes: list[int] = static(default=())  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # noqa: RUF009

    for _ in range(2):
        with pytest.raises(
            NodeDefinitionError, match=r"Bad is not a node yet: .*Bad\.sizes is static, but its annotation"
        ):
            Bad(1.0)


def test_a_decorator_may_follow_on_a_class_that_was_used() -> None:
    below = undecorated()
    dataclasses.fields(below)

    assert jax.tree.leaves(pytree_dataclass(below)(1.0)) == [1.0, 2.0]


def test_an_init_subclass_of_an_undecorated_class_that_forgets_its_base_still_gives_nodes() -> None:
    class Below(Base):
        def __init_subclass__(cls) -> None:
            pass

    class Further(Below):
        y: Any = 2.0

    assert jax.tree.leaves(Further(1.0)) == [1.0, 2.0]


def test_two_threads_make_it_once() -> None:
    below, start, made = undecorated(), threading.Barrier(4), []

    def make() -> None:
        start.wait()
        made.append(below(1.0))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [jax.tree.leaves(node) for node in made] == [[1.0, 2.0]] * 4


def test_a_thread_that_comes_while_it_is_made_waits_until_jax_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Below(Base):
        x: Any = 5.0
        y: Any = 2.0

    below: Any = Below
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.extend((below(), below(1.0, "a", 3.0))))

    def paused(step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not thread.ident:
            thread.start()
        thread.join(0.1)
        return step(*args, **options)

    for name in ("node_spec", "register_once"):
        monkeypatch.setattr(make_class, name, functools.partial(paused, getattr(make_class, name)))
    first = below()
    thread.join()

    assert [jax.tree.leaves(node) for node in (first, *came)] == [[5.0, 2.0], [5.0, 2.0], [1.0, 3.0]]


def test_by_cloudpickle_it_goes_as_it_is() -> None:
    below = undecorated()
    waiting = cloudpickle.loads(cloudpickle.dumps(below))

    assert not is_tree_node(below)
    assert jax.tree.leaves(waiting(1.0)) == [1.0, 2.0]

    used = cloudpickle.loads(cloudpickle.dumps(below(1.0)))
    assert jax.tree.leaves(used) == [1.0, 2.0]
    assert jax.tree.leaves(type(used)(5.0)) == [5.0, 2.0]
    assert copy.copy(used) == used
    assert list(inspect.signature(type(used)).parameters) == ["x", "mode", "y", "depth"]


def test_another_process_reads_pickles_treedefs_and_programs_before_it_makes_an_instance(tmp_path: Path) -> None:
    program = jax.export.export(jax.jit(lambda kept: kept.x + kept.y))(KeptInProgram(1.0))
    (tmp_path / "node").write_bytes(pickle.dumps(Kept(1.0)))
    (tmp_path / "treedef").write_bytes(pickle.dumps(jax.tree.structure(KeptInTreedef(1.0))))
    (tmp_path / "program").write_bytes(program.serialize())
    code = f"""
import pathlib, pickle, jax, jax.export, {__name__}
folder = pathlib.Path({str(tmp_path)!r})
assert jax.tree.leaves(pickle.loads((folder / "node").read_bytes())) == [1.0, 2.0]
assert jax.tree.unflatten(pickle.loads((folder / "treedef").read_bytes()), [1.0, 2.0]).depth == 3
assert jax.export.deserialize((folder / "program").read_bytes()).in_tree.num_leaves == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
