"""The same descents for many problems at once: θ of shape (batch, D, D), all in torch.

For GPUs; on a CPU the pair-by-pair path is faster, and this one is there to be compared with it.
"""
