"""Functions for trees of nodes: select, update, split, stack, compare and measure."""
