"""What made a result: parameters, seeds, data, versions, device, duration, revision, as rows for a page."""

from __future__ import annotations

import gzip
import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condnum.files import atomic_write
from condnum.report.run_folder import RECORD, REPORT
from condnum.site.result import Result

#: Tables above this many bytes are published compressed.
COMPRESSED = 300_000

#: Files above this many bytes, compressed, stay in the run's folder.
LARGEST = 1_000_000


@dataclass(frozen=True)
class PublishedFile:
    """A file of a run that the site holds."""

    name: str
    size: str  # for people


def run_facts(run: Result) -> list[tuple[str, str]]:
    """List what a run recorded of itself."""
    record = run.provenance
    device = record.get("device", {})
    platform = record.get("platform", {})
    seeds = record.get("seeds", [])
    facts = {
        "Started": _text(str(record.get("started_utc", "")).replace("T", " ").replace("+00:00", " UTC")),
        "Duration": duration(float(record.get("duration_seconds") or run.record.seconds)),
        "Seeds": _text(", ".join(map(str, seeds)) or run.parameters.get("seed", "none recorded")),
        "Data, SHA-256": "<br>".join(
            f"{_text(name)}: <code>{_text(value)}</code>" for name, value in record.get("data", {}).items()
        )
        or "none: nothing was loaded",
        "Code": revision_words(record.get("source")),
        "Device": _text(f"{device.get('name', 'not recorded')}, {device.get('device', '')}"),
        "Threads": _text(device.get("threads", "not recorded")),
        "System": _text(" ".join(map(str, platform.values())) or "not recorded"),
        "Versions": _text(", ".join(f"{name} {value}" for name, value in record.get("versions", {}).items())),
        "Parameters": _pairs(record.get("parameters", {})),
    }
    return list(facts.items())


def revision_words(source: Mapping[str, Any] | None) -> str:
    """Return a source revision as HTML.

    Examples:
        >>> revision_words({"revision": "0123456789abcdef", "dirty": True})
        'revision <code>0123456789ab</code>, with uncommitted changes'
    """
    if not source:
        return "no revision: not run from a git work tree"
    short = html.escape(str(source.get("revision", ""))[:12])
    return f"revision <code>{short}</code>" + (", with uncommitted changes" if source.get("dirty") else "")


def duration(seconds: float) -> str:
    """Return a duration for people.

    Examples:
        >>> [duration(value) for value in (7.25, 125.0, 7384.0)]
        ['7.2 s', '2 min 5 s', '2 h 3 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def publish_files(run: Result, target: Path) -> list[PublishedFile]:
    """Copy the executed notebook, the provenance and the tables of a run into the site.

    Large tables are compressed; what is larger than `LARGEST` even so is left in the run's folder. Of a
    CSV file that is compressed already, and of others, the bytes stay as they are.
    """
    if run.folder is None:
        return []
    target.mkdir(parents=True, exist_ok=True)
    tables = sorted(run.folder.glob("*.csv")) + sorted(run.folder.glob("*.csv.gz"))
    published = []
    for source in [run.folder / REPORT, run.folder / RECORD, *tables]:
        if not source.is_file() or source.is_symlink():
            continue
        content, name = source.read_bytes(), source.name
        if len(content) > COMPRESSED and source.suffix == ".csv":
            content, name = gzip.compress(content, mtime=0), f"{name}.gz"
        if len(content) > LARGEST and source.name != REPORT:
            continue
        with atomic_write(target / name) as temporary:
            temporary.write_bytes(content)
        published.append(PublishedFile(name, _size(len(content))))
    return published


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} B"


def _pairs(values: Mapping[str, Any]) -> str:
    """Return parameters as HTML, those that were left empty in one line."""
    given = {name: value for name, value in values.items() if value not in ("", None)}
    words = [f"<code>{_text(name)} = {_text(value)}</code>" for name, value in given.items()]
    return ", ".join(words) or "every one at its default"


def _text(value: Any) -> str:
    """Return anything as escaped text."""
    return html.escape(str(value))
