"""Retraces of jitted functions: observe, explain and limit them."""
