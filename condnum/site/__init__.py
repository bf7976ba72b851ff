"""The static site of a reproduction: a front page with a scoreboard, a page an experiment, a glossary.

Nothing here computes a result: it reads the folders that runs left, and says where each number is from.
"""

from condnum.site.build import build_site

__all__ = ["build_site"]
