"""Linear probing: how fast an attacker who keeps θ fixed converges, and how fast others do."""

from condnum.probing.attackers import attacker_names, get_attacker
from condnum.probing.line_search import ProbeCurve, linear_probe, log_spaced_steps
from condnum.probing.panel import attack_panel
from condnum.probing.race import AttackBudget, Attacker, AttackRun, Race, zero_weights
from condnum.probing.report import AttackReport, attack_sentences

__all__ = [
    "AttackBudget",
    "AttackReport",
    "AttackRun",
    "Attacker",
    "ProbeCurve",
    "Race",
    "attack_panel",
    "attack_sentences",
    "attacker_names",
    "get_attacker",
    "linear_probe",
    "log_spaced_steps",
    "zero_weights",
]
