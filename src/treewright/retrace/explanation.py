"""`explain`: why a call would trace again, without calling anything."""

from collections.abc import Mapping
from typing import Any

from treewright.retrace.frames import options_in
from treewright.retrace.history import name_of
from treewright.retrace.report import Event, RetraceReport
from treewright.retrace.signature import Call, call_differences, is_placement, signature_of


def explain(
    function: Any,
    old_args: tuple[Any, ...],
    new_args: tuple[Any, ...],
    *,
    old_kwargs: Mapping[str, Any] | None = None,
    new_kwargs: Mapping[str, Any] | None = None,
) -> RetraceReport:
    """Why `function`, called with the old arguments, would trace again for the new ones. Nothing is run.

    Args:
        function: A function, jitted or not; of a jitted one the static arguments are known.
        old_args: The positional arguments of the earlier call.
        new_args: Those of the later one.
        old_kwargs: The keyword arguments of the earlier call.
        new_kwargs: Those of the later one.

    Returns:
        A report; `report.event` is `"none"` if the call would need no new program.

    Examples:
        >>> def step(x, scale=1.0):
        ...     return x * scale
        >>> print(explain(step, (jnp.ones(3),), (jnp.ones(3), 2.0)))
        step would retrace
            scale (added): Python float
                a default that is passed is an argument more: pass it each time or never
    """
    options, is_static = options_in(getattr(function, "_jit_info", None))
    old, new = (
        signature_of(Call(function, tuple(args), kwargs or {}, options, is_static))
        for args, kwargs in ((old_args, old_kwargs), (new_args, new_kwargs))
    )
    differences = tuple(call_differences(old, new))
    of_trace = tuple(one for one in differences if not is_placement(one))
    event: Event = "would trace" if of_trace else "would recompile" if differences else "none"
    return RetraceReport(name_of(function), event, 0, of_trace or differences)
