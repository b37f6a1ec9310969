"""`python -m treewright move`: rewrite programs that use other libraries."""
