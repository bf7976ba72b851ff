"""The audit of one's own features: how much immunization they allow, and how much an extractor has.

Figures and tables for a report are in `condnum.audit.figures` and `condnum.audit.tables`.
"""

from condnum.audit.layers import LayerAudit, layer_audit
from condnum.audit.moments import SecondMoments, second_moments
from condnum.audit.result import Audit
from condnum.audit.study import FeatureAudit, audit

__all__ = ["Audit", "FeatureAudit", "LayerAudit", "SecondMoments", "audit", "layer_audit", "second_moments"]
