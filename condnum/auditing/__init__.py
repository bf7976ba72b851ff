"""The audit of one's own features: how much immunization they allow, and how much an extractor has."""

from condnum.auditing.audit import Audit, audit
from condnum.auditing.depth import LayerAudit, insert_extractor, layer_audit

__all__ = ["Audit", "LayerAudit", "audit", "insert_extractor", "layer_audit"]
