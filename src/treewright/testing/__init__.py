"""For tests of programs that use Treewright."""

__all__ = ["assert_trees_close"]

TYPE_CHECKING = False  # for checkers it is true
if TYPE_CHECKING:
    from treewright.testing.assertions import assert_trees_close
else:
    # Resolved on first use: test runners import this package before any test asks for jax.
    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        from importlib import import_module

        homes = {"assert_trees_close": "assertions"}
        if name not in homes:
            raise AttributeError(f"module 'treewright.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"treewright.testing.{homes[name]}"), name)
        return value
