"""The way of X_P: which files of condnum run between the loading of the house prices and the page.

`python tests/way_of_x_p.py` runs the experiment in one process and lists the files whose functions are called
from the first call into `condnum/data` on, in the notebook's kernel and in the command that makes the page.
What a module calls while it is imported does not count.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = "run house-prices --seeds 1 --steps 20 --rows 50 -j 1 -q --out out"

RECORDER = """
import atexit, os, sys, threading

folder, seen, loading = os.environ["WAY_OF_X_P"], {}, []

def imports(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and f"{os.sep}condnum{os.sep}" in frame.f_code.co_filename:
            return not frame.f_code.co_filename.endswith("__main__.py")
        frame = frame.f_back

def watch(frame, event, _):
    if event == "call" and frame.f_code.co_flags & 1:  # a function, not a module or the body of a class
        name = frame.f_code.co_filename
        place = name.rfind(f"condnum{os.sep}")
        path = name[place:]
        if place >= 0 and path not in seen and "site-packages" not in name and not imports(frame):
            if path.startswith((os.path.join("condnum", "data"), os.path.join("condnum", "report", "html"))):
                loading.append(path)
            if loading:
                seen[path] = True

sys.setprofile(watch)
threading.setprofile(watch)

@atexit.register
def keep():
    sys.setprofile(None)
    with open(os.path.join(folder, str(os.getpid())), "w") as stream:
        stream.write("\\n".join(seen))
"""


def files_on_the_way() -> list[str]:
    """Run the experiment in a folder of its own; return the files, sorted."""
    with tempfile.TemporaryDirectory() as root:
        hook, kept, work = (Path(root, name) for name in ("hook", "kept", "work"))
        for folder in (hook, kept, work):
            folder.mkdir()
        (hook / "sitecustomize.py").write_text(RECORDER)
        paths = os.pathsep.join([str(hook), str(Path(__file__).resolve().parents[1])])
        environment = {**os.environ, "WAY_OF_X_P": str(kept), "PYTHONPATH": paths}
        subprocess.run(
            [sys.executable, "-m", "condnum", *COMMAND.split()], cwd=work, env=environment, check=True
        )
        return sorted({line for path in kept.iterdir() for line in path.read_text().splitlines()})


if __name__ == "__main__":
    found = files_on_the_way()
    print("\n".join(found))
    print(f"{len(found)} files")
