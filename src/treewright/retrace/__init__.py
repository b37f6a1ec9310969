"""Why `jit` traced again: observed, explained, forbidden."""
