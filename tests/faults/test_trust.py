"""Nothing is unpickled or evaluated, nothing is fetched unasked, and servers listen on this machine alone."""

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_until

from condnum.cli import main

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


@pytest.fixture
def offline(monkeypatch):
    """Every connection fails, but for this machine's own, which a kernel needs; the attempts are listed."""
    tried, real = [], socket.socket.connect

    def connect(self, address):
        host = address[0] if isinstance(address, tuple) else "local"
        if self.family != socket.AF_UNIX and host not in ("127.0.0.1", "::1", "localhost"):
            tried.append(address)
            raise OSError("this test has no network")
        return real(self, address)

    def resolve(host, *rest, look_up=socket.getaddrinfo):
        if host not in (None, "", "127.0.0.1", "::1", "localhost", socket.gethostname()):
            tried.append(host)
            raise OSError("this test has no network")
        return look_up(host, *rest)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return tried


#: In the kernel, which is another process: the same for as long as it lives.
CUT_OFF = """
def _cut_off():
    import socket, sys
    if hasattr(socket, "_tried"):
        return
    tried = socket._tried = []
    here = {None, "", "127.0.0.1", "::1", "localhost", b"127.0.0.1", socket.gethostname()}

    def watch(event, arguments):
        host = None
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        if event == "socket.getaddrinfo":
            host = arguments[0]
        if host not in here:
            tried.append(host)
            raise OSError("this test has no network")

    sys.addaudithook(watch)

_cut_off()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "data",
        "run digits --methods imma --seeds 1 --steps 2 --pairs 4-7 --jobs 1 --out o --quiet",
    ],
    ids=lambda w: " ".join(w.split()[:2]),
)
def test_nothing_is_fetched_unasked(on_shared_kernel, offline, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for name in ("CONDNUM_DATA", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with on_shared_kernel.running(cwd=tmp_path):
        on_shared_kernel.execute(CUT_OFF)
    assert main(words.split()) == 0
    assert offline == []
    on_shared_kernel.execute("import socket; assert socket._tried == [], socket._tried")


def recipe(target):
    """Return what `make TARGET` runs after the set-up."""
    words = ["make", "--no-print-directory", "--dry-run", target, f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "/activate" in done.stdout  # the line without which no `condnum …` is found
    return done.stdout.splitlines()[-1]


def addresses(pid):
    """Return the addresses and ports on which a process listens."""
    psutil = pytest.importorskip("psutil")
    return {c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}


class Here(urllib.request.HTTPRedirectHandler):
    """Follows nothing: a page for logging in is an answer too."""

    def redirect_request(self, *_):
        return None


def answer(url):
    """Return the status, and `login` instead of a redirection to the page that asks for the token."""
    try:
        with urllib.request.build_opener(Here).open(url, timeout=PATIENCE) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return "login" if "/login" in error.headers.get("Location", "") else error.code


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="reads the sockets of a process")
@pytest.mark.parametrize("target", ["lab", "teach"])
def test_a_server_refuses_who_has_no_token(tmp_path, target):
    log_file = tmp_path / "log"
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    command = [*recipe(target).split(), *["--"] * (target == "lab"), "--port=0", "--no-browser"]
    environment = {**os.environ, "HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    environment.pop("JUPYTER_TOKEN", None)
    with log_file.open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        ((ip, port),) = wait_until(lambda: addresses(server.pid), server)
        assert ip == "127.0.0.1"
        token = wait_until(lambda: re.search(r"\?token=([0-9a-f]{40,})", log_file.read_text()), server)
        page = f"http://127.0.0.1:{port}/" + ("api/contents" if target == "lab" else "voila/tree/")
        assert answer(page) in (403, "login")
        assert answer(f"{page}?token=wrong") in (403, "login")
        assert answer(f"{page}?token={token[1]}") == 200
        with urllib.request.urlopen(
            f"{page}?classic-tree=true&token={token[1]}", timeout=PATIENCE
        ) as listing:
            text = listing.read().decode()
        assert "0_start.ipynb" in text
        assert "6_exercises.ipynb" in text
        assert ("experiments" in text) == (target == "lab")  # a class sees lessons only
        if target == "teach":  # the bare address leads to the start page and takes the token along
            with pytest.raises(urllib.error.HTTPError) as moved:
                urllib.request.build_opener(Here).open(
                    f"http://127.0.0.1:{port}/?token=abc", timeout=PATIENCE
                )
            assert moved.value.headers["Location"].endswith("/voila/render/0_start.ipynb?token=abc")
    finally:
        server.terminate()
        server.wait()
