"""The audit of one's own features: how much immunization they allow, and how much an extractor has.

Figures for a report are in `condnum.auditing.figures`.
"""

from condnum.auditing.insertion import insert_extractor
from condnum.auditing.layers import LayerAudit, layer_audit
from condnum.auditing.result import Audit
from condnum.auditing.study import audit

__all__ = ["Audit", "LayerAudit", "audit", "insert_extractor", "layer_audit"]
