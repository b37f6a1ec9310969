"""`python -m treewright info`: versions, devices and options, to paste into an issue."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import jax

_PACKAGES = ("treewright", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "safetensors", "equinox", "flax")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    """The number of devices of each kind, or why there are none, such as a missing driver."""
    try:
        kinds = [f"{device.platform} ({device.device_kind})" for device in jax.devices()]
    except RuntimeError as error:
        return f"none: {error}"
    devices = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return f"{devices}; process {jax.process_index()} of {jax.process_count()}"


def main(arguments: list[str]) -> int:
    """Print the versions, devices and options, and return the exit status."""
    if arguments:
        sys.stderr.write("usage: python -m treewright info\n")
        return 2
    options = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_")))
    rows = {
        "Python": f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}",
        **{package: _version(package) for package in _PACKAGES},
        "devices": _devices(),
        "options": ", ".join(options) or "none",
    }
    sys.stdout.writelines(f"{name:18}{value}\n" for name, value in rows.items())
    return 0
