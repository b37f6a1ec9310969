"""`python -m treewright COMMAND`: the commands, each in a module that is imported when it is asked for."""

import importlib
import sys
from types import MappingProxyType

from treewright import __version__

COMMANDS = MappingProxyType(
    {
        "checkpoint": ("treewright.checkpoint.command", "list, verify and compare checkpoints"),
        "move": ("treewright.move.command", "rewrite programs that were written for flax.struct, equinox and others"),
        "retraces": ("treewright.retrace.command", "run a program, and say what JAX compiled in it, and why again"),
    }
)


def main(arguments: list[str]) -> int:
    """Run the command that comes first. Without one, or with a wrong one, print them all."""
    name, *rest = arguments or ["--help"]
    if name in {"-V", "--version"}:
        sys.stdout.write(f"treewright {__version__}\n")
        return 0
    if name in COMMANDS:
        code: int = importlib.import_module(COMMANDS[name][0]).main(rest)
        return code
    from treewright._core.text import did_you_mean, short_text  # needs JAX, and `retraces` begins without

    asked = name in {"-h", "--help"}
    wrong = [] if asked else [f"There is no command {short_text(name)}{did_you_mean(name, COMMANDS)}."]
    lines = [*wrong, "usage: python -m treewright COMMAND ...", ""]
    lines += [f"  {command:12} {text}" for command, (_, text) in COMMANDS.items()]
    lines += [f"  {'--version':12} print the version"]
    print(*lines, sep="\n", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
