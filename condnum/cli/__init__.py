"""The command line: `condnum data`, `condnum run …`. It parses, calls the library, and prints."""

from condnum.cli.app import app
from condnum.cli.main import main

__all__ = ["app", "main"]
