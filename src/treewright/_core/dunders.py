"""Until the other folders import from `_core` alone."""

from treewright._core.methods import leaves_equal as leaves_equal
