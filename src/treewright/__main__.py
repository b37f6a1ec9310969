"""`python -m treewright COMMAND`: what can be done without writing a program."""

import importlib
import sys
from types import MappingProxyType

# Each command: the module that has it, whose `main` takes the arguments, and what it does in a line.
COMMANDS = MappingProxyType(
    {
        "checkpoint": ("treewright.checkpoint.command", "list, verify and compare checkpoints"),
    }
)


def main(arguments: list[str]) -> int:
    """Run a command and give the exit status."""
    if arguments and arguments[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[arguments[0]][0])
        status: int = module.main(arguments[1:])
        return status
    lines = [f"  {name:12} {line}" for name, (_, line) in COMMANDS.items()]
    wanted = bool(arguments) and arguments[0] in {"-h", "--help"}
    print("usage: python -m treewright COMMAND ...", *lines, sep="\n", file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
