"""Frozen, typed dataclasses that are JAX pytrees, with static fields that `jit` compares exactly.

    import jax, jax.numpy as jnp
    from treewright import Module, static

    class Dense(Module):
        kernel: jax.Array                         # a child: traced, differentiated, mapped over
        activation: str = static(default="relu")  # a static: compiled in

        def __call__(self, x):
            return getattr(jax.nn, self.activation)(x @ self.kernel)

    dense = Dense(jnp.ones((3, 2)))
    jax.grad(lambda dense: dense(jnp.ones(3)).sum())(dense)  # a Dense
    jax.vmap(dense)(jnp.ones((5, 3)))                        # f32[5,2]

By topic, each with `help(treewright.NAME)`:

    classes        Module, pytree_dataclass
    fields         static, buffer, field
    statics        Static, freeze, FrozenMapping, FrozenArray, StaticValue
    changed copies replace, at, edit
    trees          partition, combine, trainable, spec_like, stack, unstack, node_at
    inspecting     summary, count, nbytes, find_aliases, diff, allclose
    training       TrainState, loop
    layers         adopt, Adopted: for equinox and flax
    retraces       explain_retraces, max_traces, explain
    modules        checkpoint, sharding, typed, testing, errors

`python -m treewright` lists the commands. The documentation is in `docs`, and `make docs` builds the site.
"""

__version__ = "0.1.0"

__all__ = [
    "Adopted",
    "Difference",
    "FrozenArray",
    "FrozenMapping",
    "Module",
    "RetraceReport",
    "Static",
    "StaticValue",
    "TrainState",
    "adopt",
    "allclose",
    "at",
    "buffer",
    "checkpoint",
    "combine",
    "count",
    "diff",
    "edit",
    "errors",
    "explain",
    "explain_retraces",
    "field",
    "find_aliases",
    "freeze",
    "loop",
    "max_traces",
    "nbytes",
    "node_at",
    "partition",
    "pytree_dataclass",
    "replace",
    "sharding",
    "spec_like",
    "stack",
    "static",
    "summary",
    "testing",
    "trainable",
    "typed",
    "unstack",
]

# Checkers assume True because of the name; jedi reads a bool. Importing `typing` would take most of the import time.
TYPE_CHECKING: bool = False
if TYPE_CHECKING:
    from treewright import checkpoint, errors, sharding, testing, typed
    from treewright._adopt import Adopted, Static, adopt
    from treewright._core.fields import StaticValue, buffer, field, static
    from treewright._freeze import FrozenArray, FrozenMapping, freeze
    from treewright._loop import loop
    from treewright._trees.at import at
    from treewright._trees.diff import allclose, diff
    from treewright._trees.difference import Difference
    from treewright._trees.edit import edit
    from treewright._trees.partition import combine, partition
    from treewright._trees.sizes import count, find_aliases, nbytes
    from treewright._trees.specs import spec_like, trainable
    from treewright._trees.stack import node_at, stack, unstack
    from treewright._trees.summary import summary
    from treewright.module import Module, pytree_dataclass, replace
    from treewright.retrace.explain import explain, explain_retraces, max_traces
    from treewright.retrace.report import RetraceReport
    from treewright.train import TrainState
else:
    # Names are resolved on first use, so that `import treewright` does not import jax. Checkers must not see a
    # module-level __getattr__, because they would accept every misspelt name.
    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        from importlib import import_module

        homes = {
            "_loop": ("loop",),
            "_core.fields": ("StaticValue", "buffer", "field", "static"),
            "_core.copies": ("replace",),
            "module": ("Module", "pytree_dataclass"),
            "_trees.at": ("at",),
            "_trees.diff": ("allclose", "diff"),
            "_trees.difference": ("Difference",),
            "_trees.edit": ("edit",),
            "_trees.partition": ("combine", "partition"),
            "_trees.specs": ("spec_like", "trainable"),
            "_trees.sizes": ("count", "find_aliases", "nbytes"),
            "_trees.stack": ("node_at", "stack", "unstack"),
            "_trees.summary": ("summary",),
            "_freeze": ("FrozenArray", "FrozenMapping", "freeze"),
            "_adopt": ("Adopted", "Static", "adopt"),
            "retrace.explain": ("explain", "explain_retraces", "max_traces"),
            "retrace.report": ("RetraceReport",),
            "train": ("TrainState",),
        }
        if name in {"checkpoint", "errors", "sharding", "testing", "typed"}:
            return import_module(f"treewright.{name}")
        home = next((module for module, names in homes.items() if name in names), None)
        if home is None:
            import sys
            from difflib import get_close_matches

            from treewright._names_elsewhere import INSTEAD

            if name in INSTEAD:
                problem = f"treewright has no {name}. Instead: {INSTEAD[name]}."
                # `hasattr` needs an AttributeError, but `from treewright import tree_at` would replace its text.
                if sys._getframe(1).f_code.co_name == "_handle_fromlist":
                    raise ImportError(problem, name=__name__)
                raise AttributeError(problem, name=None, obj=None)
            close = get_close_matches(name, __all__, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            # Without name= and obj=, Python would add the same suggestion again.
            raise AttributeError(f"module 'treewright' has no attribute {name!r}{hint}", name=None, obj=None)
        value = globals()[name] = getattr(import_module(f"treewright.{home}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
