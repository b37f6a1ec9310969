"""What a Python value is, before any tree."""
