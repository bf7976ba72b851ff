"""Linear probing: how fast an attacker who keeps θ fixed converges, and how fast others do."""

from condnum.probing.attackers import ATTACKERS, Attacker
from condnum.probing.panel import AttackReport, attack_panel, attack_sentences
from condnum.probing.probe import ProbeCurve, linear_probe, probe_steps
from condnum.probing.race import AttackBudget, AttackProblem, Race

__all__ = [
    "ATTACKERS",
    "AttackBudget",
    "AttackProblem",
    "AttackReport",
    "Attacker",
    "ProbeCurve",
    "Race",
    "attack_panel",
    "attack_sentences",
    "linear_probe",
    "probe_steps",
]
