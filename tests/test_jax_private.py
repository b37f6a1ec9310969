"""Behaviour if JAX lacks something recent or private: what `PRIVATE_PARTS` says, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import warnings
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config, distributed
from jax._src.config import softmax_custom_jvp
from jax._src.monitoring import get_event_duration_listeners
from jax.sharding import AxisType

import treewright
from tests.retrace.support import details, explained, fresh
from treewright._base.jax_private import PRIVATE_PARTS, coordination_client, private
from treewright._trees import level
from treewright.checkpoint import CheckpointManager, load, placing, save
from treewright.errors import LoopStateError, ShardingWarning
from treewright.retrace import jax_private
from treewright.sharding import constrain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
SOURCES = [file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")]
NAMES_SETTINGS = bool(jax_private._names_of_settings())  # not in JAX 0.9


# Untyped and recent


@pytest.mark.slow
def test_import_fails_without_a_public_jax_name() -> None:
    program = """
import jax, sys
def lacks(module, name):
    value = getattr(module, name)
    delattr(module, name)
    try:
        import treewright._base.jax_private
    except AttributeError as error:
        print(error)
    setattr(module, name, value)
    sys.modules.pop("treewright._base.jax_private", None)
for name in ("GetAttrKey", "SequenceKey", "DictKey", "FlattenedIndexKey"):
    lacks(jax.tree_util, name)
lacks(jax, "typeof")
lacks(jax, "make_user_context")
lacks(jax.dtypes, "prng_key")
"""

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert [line.rpartition(" ")[2] for line in run.stdout.splitlines()] == [
        *("'GetAttrKey'", "'SequenceKey'", "'DictKey'", "'FlattenedIndexKey'"),
        *("'typeof'", "'make_user_context'", "'prng_key'"),
    ]


def test_foreign_nodes_are_rejected_without_treedef_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "flatten_once", lambda _: ([], SimpleNamespace()))

    with pytest.raises(AttributeError, match="node_data"):
        level.level_of(OrderedDict(a=1))


# Private parts


# What the parts of the package do that use them, by a name for each fact.


def loads_and_restores(folder: Path) -> dict[str, Any]:
    tree: Any = {"weak": jnp.asarray(1.0), "many": [jnp.full((2,), number) for number in range(3)]}
    save(folder / "file", tree)
    loaded = load(folder / "file", like=tree)
    with CheckpointManager(folder / "steps") as manager:
        manager.save(1, tree)
        restored = manager.restore(1, like=tree)
    same = all(map(np.array_equal, jax.tree.leaves([loaded, restored]), jax.tree.leaves([tree, tree])))
    return {"restored values": same, "restored weak types": loaded["weak"].weak_type and restored["weak"].weak_type}


def loops() -> dict[str, Any]:
    run = treewright.loop(lambda state, x: (state + x, x), 0.0)
    run(1.0)
    facts: dict[str, Any] = {"the state of a loop": float(run.state)}
    try:
        jax.jit(lambda x: run(x))(1.0)
    except LoopStateError:
        return facts | {"a loop in a different trace": "explained"}
    with pytest.raises(jax.errors.UnexpectedTracerError):
        run(1.0)
    return facts | {"a loop in a different trace": "leaks"}


def constrains() -> dict[str, Any]:
    x, mesh = jnp.ones(2), jax.make_mesh((2,), ("data",), (AxisType.Auto,))
    with jax.set_mesh(mesh):
        split = jax.jit(lambda x: constrain(x, "data"))(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mesh:
            constrain(x, "data")
    return {
        "constrain without a mesh": constrain(x, "data") is x,
        "constrain under a mesh": "replicated" if split.is_fully_replicated else "split",
        "a warning of `with mesh:`": any(issubclass(each.category, ShardingWarning) for each in caught),
    }


def reports() -> dict[str, Any]:
    jitted: Any = jax.jit(fresh(lambda x: x * 2))
    x, listeners = jnp.ones(2), get_event_duration_listeners()

    def under(setting: Any, function: Any = jitted) -> None:
        with setting:
            function(x)

    found = explained(
        *(lambda: jitted(x), lambda: jitted(jnp.ones(3)), lambda: under(jax.default_matmul_precision("float32"))),
        lambda: under(softmax_custom_jvp(not getattr(jax.config, "jax_softmax_custom_jvp"))),  # noqa: B009  untyped
        lambda: jax.vmap(jax.grad(lambda x: jitted(x).sum()))(jnp.ones((2, 4))),
        lambda: jax.jit(lambda x: jitted(x) + 1)(jnp.ones(5)),
    )
    shape, setting, rare, *inner = [details(report)[0] for report in found]
    meshes = [jax.sharding.Mesh([device], ("x",)) for device in jax.devices()[:2]]
    placed: Any = jax.jit(fresh(lambda x: x * 2))
    [recompiled] = explained(*(lambda mesh=mesh: under(jax.set_mesh(mesh), placed) for mesh in meshes))
    clear: Any = jax.monitoring.clear_event_listeners
    clear()
    other: Any = jax.jit(fresh(lambda x: x * 2))
    again = explained(lambda: other(jnp.ones(6)), lambda: other(jnp.ones(7)))
    for listener in listeners:
        if listener not in get_event_duration_listeners():
            jax.monitoring.register_event_duration_secs_listener(listener)
    return {
        "report of a shape": shape,
        "report of a setting": setting,
        "report of a rare setting": re.split(r" \(|:| \d", rare)[0],
        "report of other devices": re.split(r" \(|:", details(recompiled)[0])[0],
        "reports of calls inside others": len(inner),
        "reports after listeners were cleared": len(again),
    }


def connects() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as job:
        job.setattr(distributed.global_state, "client", "client")
        return {"the coordination service of a job": coordination_client()}


def facts(folder: Path) -> dict[str, Any]:
    return loads_and_restores(folder) | loops() | constrains() | reports() | connects()


FACTS: dict[str, Any] = {
    "restored values": True,
    "restored weak types": True,
    "the state of a loop": 1.0,
    "a loop in a different trace": "explained",
    "constrain without a mesh": True,
    "constrain under a mesh": "split",
    "a warning of `with mesh:`": True,
    "report of a shape": "x: float32[2] -> float32[3]",
    "report of a setting": "jax.config.jax_default_matmul_precision (setting): None -> 'float32'",
    "report of a rare setting": "jax.config.jax_softmax_custom_jvp" if NAMES_SETTINGS else "no visible difference",
    "report of other devices": "the mesh in use",
    "reports of calls inside others": 1,
    "reports after listeners were cleared": 1,
    "the coordination service of a job": "client",
}
# The facts that are different without each part.
LOSSES: dict[str, dict[str, Any]] = {
    "config.trace_context": {"report of a rare setting": "no visible difference"},
    "config.trace_context_names": {"report of a rare setting": "no visible difference"},
    "core.trace_ctx": {"a loop in a different trace": "leaks"},
    "core.trace_state_clean": {"reports of calls inside others": 2} if jax.__version_info__ < (0, 10) else {},
    "distributed.global_state": {"the coordination service of a job": None},
    "interpreters.pxla.batched_device_put": {},
    "lax.lax._convert_element_type": {"restored weak types": False},
    "mesh.get_concrete_mesh": {"report of other devices": "no visible difference"},
    "mesh.thread_resources": {"a warning of `with mesh:`": False},
    "monitoring.get_event_duration_listeners": {},
    "traceback_util.register_exclusion": {},
}


def take_away(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a name of a private module from every import; JAX itself keeps what it has imported."""
    module, _, name = f"jax._src.{place}".rpartition(".")
    rest = types.ModuleType(module)
    vars(rest).update({other: value for other, value in vars(sys.modules[module]).items() if other != name})
    monkeypatch.setitem(sys.modules, module, rest)
    forget()


def forget() -> None:
    remembered: list[Any] = [private, jax_private._names_of_settings, jax_private.can_read_calls]
    for function in [*remembered, jax_private.can_observe_compilations]:
        function.cache_clear()


@pytest.fixture
def takes_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    with monkeypatch.context() as context:
        yield lambda place: take_away(place, context)
    forget()


def test_each_private_part_has_a_row() -> None:
    assert list(LOSSES) == sorted(PRIVATE_PARTS)
    assert {place for code in SOURCES for place in re.findall(r'private\(\s*"([^"]+)"', code)} == set(PRIVATE_PARTS)


def test_the_default_of_a_private_part_is_no_new_object_for_each_call() -> None:
    assert not [call for code in SOURCES for call in re.findall(r"private\([^)]*lambda", code)]  # it is a cache's key


def test_private_parts_have_one_door_and_no_version_is_compared() -> None:
    imports = [line for code in SOURCES for line in re.findall(r"import.* jax\._src.*|jax\._src\b.* import.*", code)]
    attributes = [line for code in SOURCES for line in re.findall(r".*\bjax\._src\.\w+\.\w+.*", code)]
    versions = [
        line for code in SOURCES for line in re.findall(r".*__version_info__.*|.*__version__ *[<>=!]=? .*", code)
    ]

    assert imports == attributes == []
    assert versions == ['__version__ = "0.1.0"']


def test_every_private_part_exists_and_is_used(tmp_path: Path) -> None:
    forget()
    missing = {place for place in PRIVATE_PARTS if private(place) is None}

    assert missing == (set() if hasattr(config, "trace_context_names") else {"config.trace_context_names"})
    assert facts(tmp_path) == FACTS


@pytest.mark.slow
@pytest.mark.parametrize("place", LOSSES)
def test_without_a_private_part_all_goes_on_except_for_its_row(
    place: str, tmp_path: Path, takes_away: Callable[[str], None]
) -> None:
    takes_away(place)

    assert facts(tmp_path) == FACTS | LOSSES[place]


@pytest.mark.slow
def test_the_package_is_imported_without_any_private_module(tmp_path: Path) -> None:
    modules = {f"jax._src.{place.rpartition('.')[0]}" for place in PRIVATE_PARTS}
    program = f"""
import jax, jax.numpy as jnp, optax, orbax.checkpoint, sys
jax.jit(lambda x: x + 1)(jnp.ones(3))  # JAX imports some of its own modules late
sys.modules.update(dict.fromkeys({sorted(modules)}))
import treewright
from treewright import checkpoint, sharding
checkpoint.save(sys.argv[1], jnp.ones(2))
print(checkpoint.load(sys.argv[1], like=jnp.zeros(2)), sharding.constrain(jnp.ones(2), "data"))
run = treewright.loop(lambda state, x: (state + x, x), 0.0)
step = jax.jit(lambda x: x + 1)
with treewright.explain_retraces(on_report=lambda report: print(report.function, report.differences[0])):
    step(run(1.0)), step(jnp.ones(2))
"""

    run = subprocess.run([sys.executable, "-c", program, tmp_path / "file"], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines() == ["[1. 1.] [1. 1.]", "<lambda> x (shape): float32[] (weakly typed) -> float32[2]"]
    assert run.stderr == ""


# Placement


@pytest.mark.devices(2)
@pytest.mark.parametrize("exists", [True, False])
def test_arrays_are_placed_as_device_put_places_them(*, exists: bool, takes_away: Callable[[str], None]) -> None:
    if not exists:
        takes_away("interpreters.pxla.batched_device_put")
    untyped: Any = jax
    device, mesh = jax.devices()[-1], jax.make_mesh((2,), ("x",))
    shardings: list[Any] = [
        *(None, jax.sharding.SingleDeviceSharding(device)),
        *(jax.sharding.NamedSharding(mesh, untyped.P("x")), jax.sharding.NamedSharding(mesh, untyped.P())),
    ]
    for dtype in ("float32", "bfloat16", "int4", "bool"):
        arrays = [np.full((2, 3), number, jax.numpy.dtype(dtype)) for number in range(3)]
        for sharding in shardings:
            placed = placing.device_put([*arrays, arrays[0]], [sharding] * 4)
            expected: list[Any] = [
                jax.numpy.asarray(array) if sharding is None else array for array in [*arrays, arrays[0]]
            ]
            for result, array in zip(placed, expected, strict=True):
                assert result.sharding == (array.sharding if sharding is None else sharding)
                assert result.committed == (sharding is not None)
                assert not result.weak_type
                assert result.dtype == array.dtype
                assert np.asarray(result).tobytes() == np.asarray(array).tobytes()
    with jax.default_device(device):
        assert {array.device for array in placing.device_put([np.ones(2)] * 2, [None] * 2)} == {device}
