"""The control beside defenses of nets: as many steps on D_P alone, by the same optimizer."""

from condnum.methods import Method


class BenignOnly(Method):
    """Trains the last stage on D_P, and does nothing against an attacker."""

    name, label, summary = "benign_only", "D_P alone (control)", "the loss on D_P and nothing else"
    net_parts = {}
    net_defaults = {"weights": "fixed", "keep": "last", "patience": None}
