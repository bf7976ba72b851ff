"""Extractors as scikit-learn transformers and as layers of a torch net.

Arrays, tensors and data frames come back as they were given: in their kind, dtype and device. Columns of data
frames are matched by name. Computing is in float64, on the device of the inputs where it has float64.
"""

from condnum.estimators.eraser import Eraser
from condnum.estimators.immunizer import Immunizer

__all__ = ["Eraser", "Immunizer"]
