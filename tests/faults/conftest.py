"""What the fault tests share: a child that meets a fault at its k-th change of a folder."""

import os
import sys
import traceback

import pytest

#: Changes of a file system, as Python announces them before it makes them.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "os.truncate"}


def in_child(action, folder, step, fault):
    """Run an action in a forked process that meets a fault right before its k-th change inside a folder.

    Return the exit status (negative: the signal), and whether the fault came.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        count = 0

        def watch(event, arguments):
            nonlocal count
            flags = arguments[2] if event == "open" else 0
            written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if (written or event in CHANGES) and str(folder) in str(arguments[0]):
                count += 1
                if count == step:
                    os.write(writing, b"x")
                    fault()

        status = 1
        try:
            sys.addaudithook(watch)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        came = bool(pipe.read())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), came


@pytest.fixture(scope="session")
def faulty():
    """`faulty(action, folder, step, fault)`: see `in_child`."""
    return in_child
