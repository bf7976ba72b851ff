"""Lines of Python per layer beside what each may have; `make lint` prints them and fails for none."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    "cli.py": 400, "site": 500, "lessons": 4850, "audit": 2200, "report": 1900, "studies": 4600, "deep": 5200,
    "figures": 1400, "probing methods": 3700, "theory": 2300, "data": 1700, "the other files": 900,
}  # fmt: skip


def lines(*paths: Path) -> int:
    """Count the lines of Python of files and folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


if __name__ == "__main__":
    package, layers = ROOT / "condnum", [name for name in BUDGETS if name != "the other files"]
    found = {name: lines(*(package / part for part in name.split())) for name in layers}
    found |= {"the other files": lines(package) - sum(found.values()), "package": lines(package)}
    found |= {"tests": lines(ROOT / "tests")}
    for name, count in found.items():
        print(f"{name:16}{count:8,} of {(BUDGETS | {'package': 29500, 'tests': 16500})[name]:8,}")
