"""Nothing is unpickled or evaluated, and JupyterLab listens on this machine alone.

That nothing is fetched unasked is tested with the wheel.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]

#: What a reader that could run what a file holds must say; ruff finds pickle, eval, exec, yaml.load.
SAFE = "allow_pickle=False"
READERS = {"torch.load": "weights_only=True", "np.load": SAFE, "read_array": SAFE}


def unsafe_calls(source):
    """List the calls of a reader without what it must say."""
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call
        for call in calls
        for name, wanted in READERS.items()
        if re.match(rf"([\w.]+\.)?{re.escape(name)}\(", call.replace("numpy.", "np.")) and wanted not in call
    ]


def test_no_module_runs_what_a_file_holds():
    found = {path: unsafe_calls(path.read_text("utf-8")) for path in (ROOT / "condnum").rglob("*.py")}
    assert not {path: calls for path, calls in found.items() if calls}
    assert len(found) > 50


def recipe():
    """Return what `make lab` runs after the set-up."""
    words = ["make", "--no-print-directory", "--dry-run", "lab", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "/activate" in done.stdout  # the line without which no `condnum …` is found
    return done.stdout.splitlines()[-1]


def addresses(pid):
    """Return the addresses and ports on which a process listens."""
    return {c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def answer(port, page):
    """Return the status, or `login` for a redirection to the page that asks for the token; and what came."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", page)
    reply = connection.getresponse()
    place = reply.headers.get("Location", "")
    return "login" if "/login" in place else reply.status, place or reply.read().decode()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="reads the sockets of a process")
def test_jupyterlab_refuses_who_has_no_token(tmp_path):
    log_file = tmp_path / "log"
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    command = [*recipe().split(), "--", "--port=0", "--no-browser"]
    environment = {**os.environ, "HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    environment.pop("JUPYTER_TOKEN", None)
    with log_file.open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        ((ip, port),) = wait_until(lambda: addresses(server.pid), server)
        assert ip == "127.0.0.1"
        token = wait_until(lambda: re.search(r"\?token=([0-9a-f]{40,})", log_file.read_text()), server)
        page = "/api/contents"
        assert answer(port, page)[0] in (403, "login")
        assert answer(port, f"{page}?token=wrong")[0] in (403, "login")
        status, text = answer(port, f"{page}?token={token[1]}")
        assert status == 200
        assert "0_start.ipynb" in text
        assert "6_exercises.ipynb" in text
    finally:
        server.terminate()
        server.wait()
