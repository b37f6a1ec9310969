"""`python -m treewright move`: programs written for other libraries, rewritten for this one."""
