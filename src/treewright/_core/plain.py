"""Former names, until nobody imports them."""

from treewright._core.unhashable import MUTABLE, NoExactKeyError, problem_of, unanswered

__all__ = ["MUTABLE", "NoExactKeyError", "problem_of", "unanswered"]
