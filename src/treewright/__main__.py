"""`python -m treewright COMMAND`: the commands, each in a module that is imported when it is used."""

import importlib
import sys
from types import MappingProxyType

from treewright import __version__

COMMANDS = MappingProxyType(
    {
        "checkpoint": ("treewright.checkpoint.command", "list and verify checkpoints"),
        "info": ("treewright._info", "print versions, devices and options, for an issue"),
        "move": ("treewright.move.command", "rewrite programs written for flax.struct, equinox and others"),
        "retraces": ("treewright.retrace.command", "run a program and report what JAX compiled, and why it recompiled"),
    }
)


def main(arguments: list[str]) -> int:
    """Run the command in the first argument. Without one, or with an unknown one, print all commands."""
    name, *rest = arguments or ["--help"]
    if name in {"-V", "--version"}:
        sys.stdout.write(f"treewright {__version__}\n")
        return 0
    if name in COMMANDS:
        code: int = importlib.import_module(COMMANDS[name][0]).main(rest)
        return code
    from treewright._base.text import did_you_mean, short_text  # Imports JAX, which `retraces` starts without.

    is_help = name in {"-h", "--help"}
    errors = [] if is_help else [f"Unknown command {short_text(name)}{did_you_mean(name, COMMANDS)}."]
    lines = [*errors, "usage: python -m treewright COMMAND ...", ""]
    lines += [f"  {command:12} {text}" for command, (_, text) in COMMANDS.items()]
    lines += [f"  {'--version':12} print the version"]
    print(*lines, sep="\n", file=sys.stdout if is_help else sys.stderr)
    return 0 if is_help else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
