"""The audit of one's own features: how much immunization they allow, and how much an extractor has.

Figures and tables for a report are in `condnum.audit.figures` and `condnum.audit.tables`.
"""

from condnum.audit.insertion import insert_extractor
from condnum.audit.layers import LayerAudit, layer_audit
from condnum.audit.result import Audit
from condnum.audit.study import FeatureAudit, audit

__all__ = ["Audit", "FeatureAudit", "LayerAudit", "audit", "insert_extractor", "layer_audit"]
