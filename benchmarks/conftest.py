"""Before jax is imported: these are costs on the host, and a CPU is what every machine has."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
