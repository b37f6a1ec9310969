"""For tests of programs that use Treewright."""

__all__ = ["assert_trees_close"]


def assert_trees_close(actual: object, expected: object, *, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Nothing if two trees are close in the sense of `treewright.allclose`.

    Args:
        actual: A node, or any other tree.
        expected: What it should be.
        rtol: The tolerance relative to `expected`.
        atol: The absolute tolerance.

    Raises:
        AssertionError: If they are not; the message says where, and by how much.
        TracedComparisonError: If a value is traced.

    Examples:
        >>> from treewright.testing import assert_trees_close
        >>> assert_trees_close({"w": jnp.ones(3)}, {"w": jnp.ones(3) + 1e-7})
    """
    # Not before: test runners import this package before any test asks for jax.
    from treewright._trees.diff import allclose

    found = allclose(actual, expected, rtol=rtol, atol=atol)
    if not found:
        raise AssertionError(f"The trees are {found}")
