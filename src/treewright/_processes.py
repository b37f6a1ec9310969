"""What sharding and several processes need of JAX that is private or young, each with what is lost without it."""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from treewright._core.jax_private import untyped_jax

# Young. Without `multihost_utils`, which is experimental, the trees and programs of several processes could not be
# compared, and checkpoints of arrays that are spread over them could not have digests.


def process_allgather(array: Any, *, tiled: bool = False) -> Any:
    """The array of each process, stacked in their order; `tiled`, one array of the parts that they hold.

    All processes have to call it.
    """
    from jax.experimental import multihost_utils

    gather: Any = multihost_utils.process_allgather
    return np.asarray(gather(array, tiled=tiled))


def of_all_processes(data: bytes) -> list[bytes]:
    """The bytes that each process gives, in their order. All of them have to call it."""
    packed = np.frombuffer(zlib.compress(data), np.uint8)
    sizes = process_allgather(np.asarray(len(packed), np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(packed)] = packed
    rows = process_allgather(padded)
    return [zlib.decompress(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def preemption_agreed(step: int) -> bool:
    """Whether some process was told to leave and this is the step at which all do. All call it in each step.

    Without it, a run of several processes that is told to leave fails at its next step, and saves nothing more.
    """
    from jax.experimental import multihost_utils

    return bool(multihost_utils.reached_preemption_sync_point(step))


# Young. `import treewright.sharding` fails in a JAX without this one.

# A setting for a block that `jit` takes into account: a function that reads it is traced again where it differs.
part_of_jit_key: Any = untyped_jax.make_user_context


def mesh_of_old_context() -> Any:
    """The mesh of a block `with mesh:`; None outside of such blocks.

    Without it, `constrain` does nothing in such a block and does not warn.
    """
    from jax._src import mesh

    resources = getattr(getattr(mesh, "thread_resources", None), "env", None)
    physical = getattr(resources, "physical_mesh", None)
    return None if physical is None or physical.empty else physical


def coordination_client() -> Any:
    """The client of the service through which the processes of a job have found each other; None if it has none.

    Without it, processes that compare something wait for each other in a collective of their devices: with the time
    limit of their network, and without the names of those that have not come.
    """
    from jax._src import distributed

    return getattr(getattr(distributed, "global_state", None), "client", None)


def kept_arguments(compiled: Any, count: int) -> tuple[int, ...]:
    """Which leaves of its arguments a compiled program takes: `jit` leaves out those that it does not use.

    Without it, the donated arguments of a function that does not use all of its arguments may be told wrongly.
    """
    kept = getattr(getattr(compiled, "_executable", None), "_kept_var_idx", None)
    return tuple(range(count)) if kept is None else tuple(sorted(kept))


def output_shardings(compiled: Any) -> list[Any]:
    """The shardings of the outputs of a compiled program: of its results, and after them of what refs hold then.

    Without it, `program_report` fails for functions that are given refs: JAX's own `output_shardings` does too.
    """
    try:
        return list(untyped_jax.tree.leaves(compiled.output_shardings))
    except ValueError:
        return list(compiled._executable._out_shardings)


def equation_setting(equation: Any) -> tuple[Any, ...]:
    """The settings under which an equation of a jaxpr was traced, to be compared.

    Without it, two equal equations that were traced under other settings would be compiled as one.
    """
    context = equation.ctx
    names = ("compute_type", "threefry_partitionable", "xla_metadata", "cur_abstract_mesh")
    return tuple(str(getattr(context, name, None)) for name in names)


def some_equations(jaxpr: Any, equations: Any, inputs: Any, outputs: Any) -> Callable[..., list[Any]]:
    """Some equations of a closed jaxpr as a function of some of its variables that gives others.

    All public, and young. Without `replace` and `eval_jaxpr`, `sharded_init` fails.
    """
    part = jaxpr.jaxpr.replace(eqns=list(equations), invars=list(inputs), outvars=list(outputs))
    return lambda *values: untyped_jax.core.eval_jaxpr(part, jaxpr.consts, *values)
