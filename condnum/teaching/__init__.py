"""Pure computations behind the teaching notebooks, one module a notebook; NumPy and torch alone."""
