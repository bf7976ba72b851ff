"""Linear probing: how fast an attacker who keeps θ fixed converges."""

from condnum.probing.line_search import ProbeCurve, linear_probe, log_spaced_steps

__all__ = ["ProbeCurve", "linear_probe", "log_spaced_steps"]
