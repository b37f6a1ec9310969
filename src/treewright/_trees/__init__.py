"""Working on trees of nodes."""
