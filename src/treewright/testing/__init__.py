"""Assertions for tests of programs that use Treewright."""

__all__ = ["assert_trees_close"]


def assert_trees_close(actual: object, expected: object, *, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Assert that two trees are close, as defined by `treewright.allclose`.

    Args:
        actual: A node, or any other tree.
        expected: The tree to compare it with.
        rtol: The tolerance relative to `expected`.
        atol: The absolute tolerance.

    Raises:
        AssertionError: If they are not close; the message lists where, and by how much.
        TracedComparisonError: If a value is traced.

    Examples:
        >>> from treewright.testing import assert_trees_close
        >>> assert_trees_close({"w": jnp.ones(3)}, {"w": jnp.ones(3) + 1e-7})
    """
    # Imported here because test runners import this package before any test needs jax.
    from treewright._trees.diff import allclose

    closeness = allclose(actual, expected, rtol=rtol, atol=atol)
    if not closeness:
        raise AssertionError(f"The trees are {closeness}")
