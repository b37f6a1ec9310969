"""Reports if JAX lacks something private: they lose what `jax_private.py` documents, never silently."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import types
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import dispatch, monitoring, pjit

import treewright
from tests.conftest import skip_before_jax
from tests.retrace.support import details, explained, fresh
from treewright._base.jax_private import private
from treewright.errors import RetraceWarning
from treewright.retrace import jax_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treewright import RetraceReport


def double(x: Any) -> Any:
    return x * 2


def power(x: Any, exponent: int) -> Any:
    return x**exponent


def calls_with_lengths(jitted: Any, *numbers: int) -> list[Callable[[], object]]:
    return [functools.partial(jitted, np.ones(number, np.float32)) for number in numbers]


@pytest.fixture(autouse=True)
def what_jax_shows_is_looked_up_in_each_test() -> Iterator[None]:
    yield from _forgotten()


def _forgotten() -> Iterator[None]:
    remembered: list[Any] = [
        jax_private.can_read_calls,
        jax_private.can_observe_compilations,
        jax_private._names_of_settings,
        private,
    ]
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def test_this_jax_version_has_everything_needed() -> None:
    jitted: Any = jax.jit(fresh(double))
    jitted(1.0)

    assert jax_private.can_read_calls()
    assert jax_private.can_observe_compilations()


@pytest.mark.slow
def test_watching_before_any_compilation_needs_no_device() -> None:
    program = """
import jax, treewright
from jax._src import xla_bridge

@treewright.max_traces(1, recompiles=0)
@jax.jit
def step(x):
    return x

with treewright.explain_retraces(), treewright.max_traces(1, recompiles=0):
    jax.eval_shape(step, 1.0)
print(xla_bridge.backends_are_initialized())
jax.config.update("jax_num_cpu_devices", 2)  # as jax.distributed.initialize, possible only without a backend
step(1.0)
"""

    command = [sys.executable, "-m", "treewright", "retraces", "/dev/stdin"]
    run = subprocess.run(command, input=program, capture_output=True, text=True, check=True, timeout=60)

    assert run.stdout == "False\n"


def test_inspection_ignores_the_surrounding_trace_and_settings() -> None:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        jax_private.can_read_calls.cache_clear()
        seen.append(jax_private.can_read_calls())
        return x

    with jax.disable_jit():
        look(1.0)
    jax.eval_shape(look, 1.0)
    jax.vmap(look)(jnp.ones(2))

    assert seen == [True] * 3


def test_explain_without_jit_options_adds_a_caveat() -> None:
    jitted: Any = jax.jit(power, static_argnums=1)
    assert details(treewright.explain(jitted, (1.0, 2), (1.0, 3)))[0] == "exponent (static): 2 -> 3"

    jitted._jit_info = SimpleNamespace()

    report = treewright.explain(jitted, (1.0,), (2.0,))
    unseen = f"the static arguments can't be read in JAX {jax.__version__}: changes of them are not reported"
    assert details(report) == [unseen]
    assert str(report).startswith("power would not retrace, as far as can be seen")


# Events


def test_a_block_without_trace_events_reports_that_it_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "JAXPR_TRACE_EVENT", "/renamed")

    with pytest.warns(
        RetraceWarning, match="Calls of jitted functions can't be read in JAX .*, so no retrace is observed"
    ) as caught:
        explained()
    assert caught[0].filename.endswith("support.py")  # the file of the block
    for count in (lambda: treewright.max_traces(1).__enter__(), lambda: treewright.max_traces(1)(fresh(double))):
        with pytest.raises(
            RuntimeError, match=r"max_traces can't count in JAX .*: its traces, or .* can't be read. Update Treewright"
        ):
            count()


def test_a_block_without_compilation_events_reports_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKEND_COMPILE_EVENT", "/renamed")
    jitted: Any = jax.jit(fresh(double))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not explained(lambda: None)
    lost = "Compilations can't be read completely in .*, and traces that occur only under .* not observed"
    with pytest.warns(RetraceWarning, match=lost) as caught:
        reports = explained(*calls_with_lengths(jitted, 2, 3))

    assert caught[0].filename.endswith("support.py")  # the file of the block
    assert [report.event for report in reports] == ["trace"]
    count = pytest.raises(RuntimeError, match=r"can't count in JAX .*, or its compilations for recompiles=")
    with pytest.warns(RetraceWarning, match=lost), treewright.max_traces(1, recompiles=0), count:
        jax.jit(fresh(double))(1.0)


def test_reports_without_events_of_lowering_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "JAXPR_TO_MLIR_MODULE_EVENT", "/renamed")
    jitted: Any = jax.jit(fresh(double))

    with treewright.max_traces(2, recompiles=0):
        assert len(explained(*calls_with_lengths(jitted, 2, 3))) == 1


def test_a_block_that_ends_during_an_event_hides_it_from_no_other_block() -> None:
    outer, jitted = treewright.explain_retraces(on_report=str), jax.jit(fresh(double))
    reports: list[RetraceReport] = []

    with outer, treewright.explain_retraces(on_report=reports.append):
        inner = treewright.explain_retraces(on_report=lambda _: inner.__exit__(None, None, None))
        inner.__enter__()
        for call in calls_with_lengths(jitted, 2, 3, 4):
            call()

    assert len(reports) == 2


@pytest.mark.parametrize("has_list", [True, False])
def test_cleared_listeners_are_registered_again(has_list: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clear = jax.monitoring.clear_event_listeners
    if not has_list:
        monkeypatch.delattr(monitoring, "get_event_duration_listeners")

    with treewright.max_traces(0):
        clear()  # type: ignore[no-untyped-call]
    for _ in range(2):
        reports = explained(*calls_with_lengths(jax.jit(fresh(double)), 2, 3))
        assert [report.number for report in reports] == [2]


# Settings, pmap, and the outcome of a call


def test_a_block_without_vmap_frames_reports_missing_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_private, "BATCH_FRAME", "renamed")
    jitted: Any = jax.jit(fresh(double))

    def batches() -> None:
        for size in (2, 3):
            jax.vmap(jitted)(np.ones((size, 2), np.float32))

    with pytest.warns(
        RetraceWarning, match="some recompiles, such as for a different batch size of vmap, .* were not observed"
    ) as warned:
        reports = explained(batches)

    assert not reports
    assert warned[0].filename.endswith("support.py")  # the file of the block


# Frames


def rename(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename a function of JAX, or a variable, in the code of `function` and of the functions in it."""
    owner: Any = inspect.unwrap(getattr(pjit, function))
    monkeypatch.setattr(owner, "__code__", renamed(owner.__code__, name))


def renamed(code: types.CodeType, name: str) -> types.CodeType:
    def without(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("renamed" if variable == name else variable for variable in names)

    return code.replace(
        co_name="renamed" if code.co_name == name else code.co_name,
        co_varnames=without(code.co_varnames),
        co_cellvars=without(code.co_cellvars),
        co_freevars=without(code.co_freevars),
        co_consts=tuple(renamed(each, name) if isinstance(each, types.CodeType) else each for each in code.co_consts),
    )


@pytest.mark.parametrize("name", ["_trace_for_jit", "fun", "args", "kwargs", "ji", "jaxpr", "dbg"])
def test_a_block_without_frames_only_warns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_before_jax(0, 10)
    rename(name, "_trace_for_jit", monkeypatch)
    jitted: Any = jax.jit(fresh(power), static_argnums=1)

    with pytest.warns(RetraceWarning, match=r"can't be read in JAX .*, so no retrace is observed"):
        reports = explained(*(functools.partial(jitted, jnp.ones(2), exponent) for exponent in (2, 3)))

    assert not reports
    with pytest.raises(RuntimeError, match="max_traces can't count"):
        treewright.max_traces(0, only="power").__enter__()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        *((name, "_cpp_pjit") for name in ("cache_miss", "jit_info", "fun", "args", "kwargs")),
        ("_pjit_call_impl_python", "_pjit_call_impl_python"),
        ("_pjit_batcher", "_pjit_batcher"),
        ("axis_data", "_pjit_batcher"),
    ],
)
def test_a_block_without_frames_of_compilations_says_so(
    name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(name, function, monkeypatch)
    jitted: Any = jax.jit(fresh(double))
    devices = jax.devices()[:2]

    with pytest.warns(RetraceWarning, match="some recompiles, .*, were not observed. Update Treewright"):
        reports = explained(
            *calls_with_lengths(jitted, 2, 3),
            *(functools.partial(jitted, jax.device_put(np.ones(3, np.float32), device)) for device in devices),
            *(functools.partial(jax.vmap(jitted), np.ones((size, 2), np.float32)) for size in (2, 3)),
        )

    assert [details(report)[0] for report in reports if report.event == "trace"] == ["x: float32[2] -> float32[3]"]
    with pytest.warns(RetraceWarning), treewright.max_traces(1, recompiles=0), pytest.raises(RuntimeError):
        jax.jit(fresh(double))(1.0)


def test_reports_of_pmap_do_not_depend_on_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["jax._src.pmap"], "__name__", "jax._src.renamed")
    mapped: Any = jax.pmap(fresh(double))

    [report] = explained(*(functools.partial(mapped, np.ones((1, number), np.float32)) for number in (2, 3)))

    assert details(report)[0] == "x: float32[1,2] -> float32[1,3]"


def test_without_the_wrapper_of_jit_earlier_programs_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_private, "JIT_WRAPPER", "renamed")
    jitted: Any = jax.jit(fresh(double))
    earlier, *calls = calls_with_lengths(jitted, 1, 2, 3)
    earlier()

    [report] = explained(*calls)

    assert (report.number, report.before) == (2, 0)


@pytest.mark.parametrize(
    ("frame", "reported"), [("TRACE_ONLY_FRAME", ["eval_shape", "lower"]), ("LOWER_FRAME", [])], ids=["trace", "lower"]
)
def test_without_its_frames_a_trace_for_no_program_is_one_more_or_less(
    frame: str, reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_before_jax(0, 10)
    monkeypatch.setattr(jax_private, frame, "renamed")

    def shapes(trace: Any) -> None:
        jitted: Any = jax.jit(fresh(double))
        for length in (2, 3):
            trace(jitted, np.ones(length, np.float32))

    traces: dict[str, Any] = {"eval_shape": jax.eval_shape, "lower": lambda jitted, x: jitted.lower(x)}
    assert [name for name, trace in traces.items() if explained(functools.partial(shapes, trace))] == reported


@pytest.mark.slow
@pytest.mark.parametrize(("name", "others"), [("equinox", "static[1][1]"), ("flax", "model._graphdef")])
def test_reports_without_wrappers_use_library_names(name: str, others: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nnx = pytest.importorskip("flax.nnx")

    def apply(model: Any, x: jax.Array) -> Any:
        return model(x)

    def lines() -> list[str]:
        jitted = (eqx.filter_jit if name == "equinox" else nnx.jit)(fresh(apply))
        if name == "equinox":
            models = [eqx.nn.Linear(2, 3, use_bias=bias, key=jax.random.key(0)) for bias in (True, False)]
        else:
            models = [nnx.Linear(2, 3, use_bias=bias, rngs=nnx.Rngs(0)) for bias in (True, False)]
        [report] = explained(*(functools.partial(jitted, model, jnp.ones(2)) for model in models))
        return details(report)

    assert any(line.startswith("model.use_bias (static): True -> False") for line in lines())
    for module in ("equinox._jit", "flax.nnx.transforms.compilation"):
        monkeypatch.setattr(sys.modules[module], "__name__", f"{module.partition('.')[0]}.renamed")
    assert any(line.startswith(others) for line in lines())
