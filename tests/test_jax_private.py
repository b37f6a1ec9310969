"""What is lost where JAX lacks something that is private or young: what `_jax.py` says, and never in silence."""

from __future__ import annotations

import abc
import functools
import subprocess
import sys
import warnings
from collections import OrderedDict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config, dispatch, monitoring
from jax.experimental import multihost_utils

import treewright
from tests.retrace.support import details, fresh
from treewright import _jax, _jax_processes, _jax_refs
from treewright._trees import level
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.traced import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treewright import RetraceReport

COUNTED = "the arguments could not be read, so traces are only counted, by the function's name"


def double(x: Any) -> Any:
    return x * 2


def first(tree: Any) -> Any:
    return tree["x"]


def power(x: Any, exponent: int) -> Any:
    return x**exponent


def explained(*calls: Callable[[], object]) -> list[RetraceReport]:
    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append):
        for call in calls:
            call()
    return reports


@pytest.fixture(autouse=True)
def looked_anew() -> Iterator[None]:
    """What JAX shows is looked up once in a process: here, for each test."""
    names = ("sight", "knows_tracers", "hears_compilations")
    for name in names:
        vars(PROCESS).pop(name, None)
    yield
    for name in names:
        vars(PROCESS).pop(name, None)


def test_in_this_version_of_jax_nothing_is_missing() -> None:
    seen: list[type[Any]] = []
    jax.jit(lambda x: seen.append(type(x)))(1.0)

    sight = _jax.look()

    assert (sight.tracer_class, sight.events, sight.calls, sight.outcomes) == (seen[0], True, True, True)
    assert _jax.tells_of_compilations()


def test_looking_needs_no_device() -> None:
    program = (
        "from treewright import _jax; assert _jax.look().calls; "
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    )

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert run.stdout == "False\n"


def test_looking_does_not_depend_on_the_trace_and_the_settings_around_it() -> None:
    sights: list[_jax.Sight] = []

    def look(x: Any) -> Any:
        sights.append(_jax.look())
        return x

    with jax.disable_jit():
        sights.append(_jax.look())
    jax.eval_shape(look, 1.0)
    jax.vmap(look)(jnp.ones(2))

    assert sights == [_jax.look()] * 3


# Untyped and young


def test_without_a_public_name_of_jax_the_import_fails() -> None:
    program = """
import jax, sys
def lacks(module, name):
    value = getattr(module, name)
    delattr(module, name)
    try:
        import treewright._core.jax_private
    except AttributeError as error:
        print(error)
    setattr(module, name, value)
    sys.modules.pop("treewright._core.jax_private", None)
for name in ("GetAttrKey", "SequenceKey", "DictKey", "FlattenedIndexKey"):
    lacks(jax.tree_util, name)
lacks(jax, "typeof")
lacks(jax.dtypes, "prng_key")
"""

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert [line.rpartition(" ")[2] for line in run.stdout.splitlines()] == [
        *("'GetAttrKey'", "'SequenceKey'", "'DictKey'", "'FlattenedIndexKey'"),
        *("'typeof'", "'prng_key'"),
    ]


def test_without_the_question_whether_a_class_is_registered_an_instance_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @treewright.pytree_dataclass
    class Node:
        x: Any

    class Plain: ...

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    answers = [_jax.is_tree_node(cls) for cls in (Node, Plain, Shape)]
    monkeypatch.delattr(_jax.jax_trees, "is_tree_node", raising=False)

    assert answers == [_jax.is_tree_node(cls) for cls in (Node, Plain, Shape)] == [True, False, False]


def test_without_kinds_of_refs_a_ref_is_of_the_only_one() -> None:
    assert _jax_refs.new_ref(jnp.ones(2), kind=None)[...].tolist() == [1.0, 1.0]


# Treedefs and options


def test_without_the_data_of_treedefs_foreign_nodes_are_refused_and_their_retraces_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AttributeError, match="node_data"):
        _jax.node_data(SimpleNamespace())
    monkeypatch.setattr(level, "node_data", lambda _treedef: _jax.node_data(SimpleNamespace()))
    with pytest.raises(AttributeError, match="node_data"):
        treewright.diff(OrderedDict(x=1), OrderedDict(x=2))

    reports: list[RetraceReport] = []
    told: Any = jax.jit(treewright.traced(fresh(first), on_report=reports.append))
    for length in (2, 3):
        told(OrderedDict(x=jnp.ones(length)))
    jitted: Any = jax.jit(fresh(first))
    reports += explained(lambda: jitted(OrderedDict(x=jnp.ones(2))), lambda: jitted(OrderedDict(x=jnp.ones(3))))

    assert [(report.event, details(report)) for report in reports] == [("count", [COUNTED])] * 2


def test_without_its_options_a_jitted_function_is_explained_with_a_reservation() -> None:
    jitted: Any = jax.jit(power, static_argnums=1)
    assert explain_powers(jitted) == ["exponent (static): 2 -> 3", *details(treewright.explain(power, (), ()))]

    jitted._jit_info = SimpleNamespace()

    unseen = f"which arguments are static can't be read in JAX {jax.__version__}: a change of one is not seen"
    assert explain_powers(jitted)[-1] == unseen
    report = treewright.explain(jitted, (1.0,), (2.0,))
    assert str(report).startswith("power would not retrace, as far as can be seen")
    assert _jax.options_of(power) is None


def explain_powers(jitted: Any) -> list[str]:
    lines = details(treewright.explain(jitted, (1.0, 2), (1.0, 3)))
    return [line for line in lines if not line.startswith(" ")]


# Events


def test_without_the_event_of_traces_a_block_says_that_it_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "JAXPR_TRACE_EVENT", "/renamed")

    with pytest.warns(RetraceWarning, match="does not tell of traces .*: no retrace is reported but those of") as told:
        explained()
    assert told[0].filename == __file__
    with pytest.raises(RuntimeError, match=r"max_traces can't count: JAX .* does not tell of traces"):
        treewright.max_traces(1).__enter__()
    limited: Any = jax.jit(treewright.max_traces(1)(fresh(double)))
    limited(jnp.ones(2))
    with pytest.raises(TooManyTracesError, match="double may be traced once here"):
        limited(jnp.ones(3))


def test_without_the_event_of_compilations_a_block_says_what_it_did_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKEND_COMPILE_EVENT", "/renamed")
    jitted: Any = jax.jit(fresh(double))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not explained(lambda: None)
    lost = "does not tell of compilations .*: neither recompiles nor traces under grad or vmap alone were seen"
    with pytest.warns(RetraceWarning, match=lost) as told:
        reports = explained(*(lambda: jitted(jnp.ones(2)), lambda: jitted(jnp.ones(3))))

    assert told[0].filename == __file__
    assert [report.event for report in reports] == ["trace"]


def test_without_a_way_to_stop_it_a_listener_does_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(jax.monitoring, "unregister_event_duration_listener")
    jitted: Any = jax.jit(fresh(double))

    reports = explained(lambda: jitted(jnp.ones(2)))
    jitted(jnp.ones(3))

    assert not reports


def test_a_listener_that_stops_while_jax_tells_of_a_trace_makes_no_other_miss_it() -> None:
    traces: list[str] = []
    listeners: list[_jax.EventListener] = []
    listeners.append(_jax.EventListener(lambda *_: listeners[0].stop()))
    second = _jax.EventListener(lambda kind, _, name: traces.append(name) if kind == "trace" else None)
    jax.jit(fresh(double)).trace(1.0)
    second.stop()
    heard = list(traces)
    jax.jit(fresh(double)).trace(1.0)

    assert "double" in heard  # before JAX 0.10 the multiplication in it too
    assert traces == heard


# Settings, pmap, and what became of a call


def test_without_the_names_of_settings_a_change_of_one_is_told_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "trace_context_names", lambda: (), raising=False)
    jitted: Any = jax.jit(fresh(double))

    def under(setting: Any) -> None:
        with setting:
            jitted(np.ones(2, np.float32))

    named, unnamed = explained(
        lambda: jitted(np.ones(2, np.float32)),
        lambda: under(jax.default_matmul_precision("float32")),
        lambda: under(config.softmax_custom_jvp(not getattr(jax.config, "jax_softmax_custom_jvp"))),  # noqa: B009
    )

    assert details(named)[0] == "jax.config.jax_default_matmul_precision (setting): None -> 'float32'"
    assert len(named.differences) == 1
    assert details(unnamed)[0].startswith(f"a setting that JAX {jax.__version__} gives no name[")


def test_without_the_names_of_settings_they_are_one_setting_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(config, "trace_context_names", raising=False)

    assert [*_jax.trace_settings()][-1] == _jax.UNNAMED_SETTINGS


def test_without_the_agreement_on_a_step_a_run_that_is_told_to_leave_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", lambda step: step == 3)
    assert [_jax_processes.preemption_agreed(step) for step in (2, 3)] == [False, True]

    monkeypatch.delattr(multihost_utils, "reached_preemption_sync_point")
    with pytest.raises(AttributeError, match="reached_preemption_sync_point"):
        _jax_processes.preemption_agreed(3)


def test_without_the_settings_of_traces_the_known_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(config, "trace_context")

    names = list(_jax.trace_settings())

    assert names[:2] == ["jax.config.jax_enable_x64", "jax.config.jax_default_matmul_precision"]
    assert names[-1] in {"the mesh in use", _jax.UNNAMED_SETTINGS}


@pytest.mark.parametrize("missing", [0, 1])
def test_without_the_filter_of_tracebacks_or_its_variable_transformations_have_the_names_of_functions_in_them(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*_jax.BOUNDARY]
    names[missing] = "renamed"
    monkeypatch.setattr(_jax, "BOUNDARY", names)
    twice: Any = fresh(double)

    [report] = explained(lambda: jax.jit(jax.grad(twice))(1.0), lambda: jax.jit(jax.value_and_grad(twice))(1.0))

    assert "grad.<locals>.grad_f -> value_and_grad.<locals>.value_and_grad_f" in str(report)


def test_without_its_module_or_its_variables_calls_of_pmap_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: Any = jax.pmap(fresh(double))
    assert len(explained(*(functools.partial(mapped, np.ones((1, length))) for length in (2, 3)))) == 1

    monkeypatch.setattr(_jax, "PMAP", "renamed")
    assert not explained(*(functools.partial(mapped, np.ones((1, length))) for length in (4, 5)))
    assert _jax._pmapped(lambda: None, (), {}) is None


def test_without_the_list_of_listeners_a_block_works_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(monitoring, "get_event_duration_listeners")
    jitted: Any = jax.jit(fresh(double))

    for _ in range(2):
        reports = explained(*(functools.partial(jitted, jnp.ones(length)) for length in (2, 3)))
        jitted.clear_cache()
        assert len(reports) == 1


# Frames


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CALL_FRAMES", frozenset({"renamed"})),
        ("CALL_LOCALS", ("fun", "args", "renamed")),
        ("OPTIONS_LOCALS", ("renamed",)),
    ],
)
def test_without_its_frames_or_their_locals_traces_are_counted_and_that_is_said(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jax, name, value)
    jitted: Any = jax.jit(fresh(power), static_argnums=1)

    with pytest.warns(RetraceWarning, match=r"can't be read in JAX .*: traces are only counted, .* nor traces under"):
        [report] = explained(*(lambda: jitted(jnp.ones(2), 2), lambda: jitted(jnp.ones(2), 3)))

    assert (report.event, report.function, report.number) == ("count", "power", 2)
    assert details(report) == [COUNTED]
    with (
        pytest.warns(RetraceWarning, match="can't be read"),
        pytest.raises(TooManyTracesError, match="power may not be traced here, and is"),
        treewright.max_traces(0),
    ):
        jitted(jnp.ones(5), 2)


def test_without_the_modules_of_its_operations_reports_are_the_same_as_long_as_calls_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_jax, "OPERATIONS", ("renamed",))

    assert not explained(lambda: jnp.linspace(0, 1, 17), lambda: jnp.linspace(0, 1, 18))


@pytest.mark.parametrize(("name", "others"), [("EQUINOX_JIT", "static[1][1]"), ("FLAX_NNX", "model._graphdef")])
def test_without_the_wrappers_of_equinox_and_flax_reports_are_in_the_words_of_these(
    name: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nnx = pytest.importorskip("flax.nnx")

    def apply(model: Any, x: jax.Array) -> Any:
        return model(x)

    def lines() -> list[str]:
        jitted = (eqx.filter_jit if name == "EQUINOX_JIT" else nnx.jit)(fresh(apply))
        if name == "EQUINOX_JIT":
            models = [eqx.nn.Linear(2, 3, use_bias=bias, key=jax.random.key(0)) for bias in (True, False)]
        else:
            models = [nnx.Linear(2, 3, use_bias=bias, rngs=nnx.Rngs(0)) for bias in (True, False)]
        [report] = explained(*(functools.partial(jitted, model, jnp.ones(2)) for model in models))
        return details(report)

    assert any(line.startswith("model.use_bias (static): True -> False") for line in lines())
    monkeypatch.setattr(_jax, name, "renamed")
    assert any(line.startswith(others) for line in lines())


# Tracers


@pytest.mark.parametrize(
    ("name", "value"), [("untyped_jax", SimpleNamespace()), ("called_by_a_library", lambda: False)]
)
def test_where_a_function_cannot_tell_that_it_is_traced_that_is_said_once(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jax, name, value)
    jitted: Any = jax.jit(treewright.traced(fresh(double)))

    with pytest.warns(RetraceWarning, match=r"so traced\(\) and max_traces\(\) below jit see no traces"):
        jitted(jnp.ones(2))
    assert np.all(jitted(jnp.ones(3)) == 2)
    with pytest.raises(RuntimeError, match=r"max_traces=1 can't be held: JAX .* see no traces"):
        jax.jit(treewright.max_traces(1)(fresh(double)))(jnp.ones(2))


def test_the_coordination_service_is_there_in_a_job_and_not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import distributed

    assert _jax_processes.coordination_client() is None
    monkeypatch.setattr(distributed.global_state, "client", "client")
    assert _jax_processes.coordination_client() == "client"
    monkeypatch.delattr(distributed, "global_state")
    assert _jax_processes.coordination_client() is None


def test_the_mesh_of_an_old_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import mesh as meshes

    old: Any = jax.make_mesh((2,), ("data",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with old:
            assert _jax_processes.mesh_of_old_context() == old
            with monkeypatch.context() as without:
                without.delattr(meshes, "thread_resources")
                assert _jax_processes.mesh_of_old_context() is None


def test_arguments_that_a_program_does_not_take_are_known() -> None:
    lowered = jax.jit(lambda x, unused, y: x + y).lower(1.0, 2.0, 3.0)

    assert _jax_processes.kept_arguments(lowered.compile(), 3) == (0, 2)
    assert _jax_processes.kept_arguments(SimpleNamespace(), 3) == (0, 1, 2)


def test_equations_of_other_settings_are_told_apart() -> None:
    def equation(*, partitionable: bool) -> Any:
        with jax.threefry_partitionable(partitionable):
            (found,) = jax.make_jaxpr(lambda key: jax.random.bits(key, (2,)))(jax.random.key(0)).eqns
        return found

    first, second = (_jax_processes.equation_setting(equation(partitionable=value)) for value in (True, False))
    assert first == _jax_processes.equation_setting(equation(partitionable=True)) != second


def test_without_the_trace_of_a_place_a_loop_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jax, "TRACE_STATE_HOMES", ("jax.tree_util",))
    run = treewright.loop(lambda state, x: (state + x, state), jnp.zeros(()))
    run(1.0)
    assert float(run.state) == 1.0

    jax.jit(run)(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        run(1.0)
