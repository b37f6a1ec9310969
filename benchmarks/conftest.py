"""Settings before jax is imported: the benchmarks measure the host, and every machine has a CPU."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
