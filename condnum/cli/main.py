"""The console script: one paragraph for an error of ours, 130 for Ctrl-C, a traceback for a bug."""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

import typer

from condnum.cli.app import app
from condnum.errors import CondnumError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_stopped = threading.Event()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; default: from `sys.argv`.

    Returns:
        The exit status: 0, 1 (a check found something missing), 2 (wrong use, or a `CondnumError`),
        130 (stopped by Ctrl-C or a termination signal).

    Raises:
        Exception: A bug, with its traceback.

    Examples:
        >>> main(["--version"])
        condnum ...
        0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a word may hold bytes that are no text in any encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        with _termination_as_interrupt():
            status = app(args=words, prog_name="condnum", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        say("stopped by Ctrl-C.")
        return EXIT_INTERRUPTED
    except CondnumError as error:
        if "--debug" in words:
            traceback.print_exception(error)
        else:
            say(str(error))
        return EXIT_ERROR
    except Exception as error:
        # Wrong use: click's class, or that of the copy of click inside newer typers.
        if not (hasattr(error, "show") and hasattr(error, "exit_code")):
            raise
        error.show()
        return int(error.exit_code)
    return status if isinstance(status, int) else 0


def say(message: str) -> None:
    """Print one wrapped paragraph on the standard error, after the program's name."""
    width = min(100, shutil.get_terminal_size().columns)
    paragraph = textwrap.fill(
        f"condnum: {' '.join(message.split())}", width, break_long_words=False, break_on_hyphens=False
    )
    print(paragraph, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _termination_as_interrupt() -> Generator[None, None, None]:
    """Clean up after a termination signal as after Ctrl-C: the kernel, temporary files."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    _stopped.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is signal.default_int_handler:  # not where it is ignored
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped() -> bool:
    """Tell whether Ctrl-C or a termination signal came to this command.

    Event loops may turn the interruption into an error of their own on its way.
    """
    return _stopped.is_set()


def _interrupt(*_: Any) -> NoReturn:
    """Treat a termination signal like Ctrl-C, and remember that it came."""
    _stopped.set()
    raise KeyboardInterrupt
