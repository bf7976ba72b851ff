"""Experiments: one module and a thin notebook each; the frame runs any of them."""
