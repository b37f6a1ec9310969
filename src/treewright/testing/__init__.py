"""For tests of programs that use Treewright."""
