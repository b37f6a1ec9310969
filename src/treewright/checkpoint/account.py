"""What a user is told of a load that went well although not everything fitted."""

from collections.abc import Iterable, Sequence

from treewright._values.text import first_of
from treewright.checkpoint.leaves import Leaf
from treewright.errors import CheckpointWarning, warn_user


def warn(text: str) -> None:
    """Warn with the user's line: the first outside of Treewright."""
    warn_user(text, CheckpointWarning)


def listed(lines: Sequence[str]) -> list[str]:
    """Indented lines; of many, the first and how many more there are."""
    return [f"  {line}" for line in first_of(lines)]


def tell_partial(taken: int, dropped: Iterable[Leaf], initial: Iterable[Leaf], others: Iterable[object] = ()) -> None:
    """Warn of what `strict=False` let through, if anything.

    Args:
        taken: How many leaves were loaded.
        dropped: Leaves that were saved, and for which the tree has no place.
        initial: Leaves of the tree that were not saved.
        others: Classes that differ.
    """
    kinds = (
        ("Dropped, since the tree has no place for them:", [f"{leaf.path}: {leaf.form}" for leaf in dropped]),
        ("Not saved, so they have the value that they had in the tree:", [f"{x.path}: {x.form}" for x in initial]),
        ("Of other classes:", [str(mismatch) for mismatch in others]),
    )
    if any(lines for _, lines in kinds):
        leaves = "1 leaf was loaded" if taken == 1 else f"{taken} leaves were loaded"
        parts = [line for title, lines in kinds if lines for line in (title, *listed(lines))]
        warn("\n".join([f"Not all of the checkpoint fitted the tree (strict=False); {leaves}.", *parts]))
