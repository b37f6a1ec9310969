"""Helpers below `_core`: inspect functions, format text and reports, and use JAX's private APIs."""
