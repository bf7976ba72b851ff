"""Prose that must be decoded: private terms and long sentences; `make lint` fails for either."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "reports/**/*.md", "condnum/site/pages/**/*.md", "notebooks/**/*.ipynb")
LONGEST, LONG, LONG_FRACTION = 35, 30, 0.05  # words: of a sentence, of a long one, and how many may be long

#: What to write: instead of which words.
TERMS = r"""
scale of θ: gauges?; bundled data: the box; suspicious columns: odd columns?
theoretical limit: (the|no|more) room; fraction: (the|a|what|which) shares?; depends on: hangs? on
distinguishable: told apart|tell apart|be told; split: partings?; preset: named settings; a person: whoever
a plain negation: (is|are|was) no (whole|number|such case); selected by name: had by name; layer: rooms
per: (rows|images|examples|steps|directions) a (class|task|step|pair|digit); a verb of action: it answers
a comma as separator: [0-9]+ 000; American spelling: colour|behaviour|neighbour|centred|\w+isation
American spelling: (?!prom|exerc|ra|superv|unsuperv|rev|prec|comprom|adv|no|po|surpr)\w+ised
"""
PRIVATE = [term.split(": ", 1) for term in re.split(r"; |\n", TERMS) if term]
SKIPPED = r"(?ms)^( *)(```|~~~|:::).*?^\1\2|^---\n.*?^---$|<!--.*?-->|\$\$.*?\$\$|^ *[|>].*?$"


def texts(path: Path) -> Iterator[str]:
    """Return the Markdown of a page or of each cell of a notebook."""
    page = path.read_text(encoding="utf-8")
    cells = json.loads(page)["cells"] if path.suffix == ".ipynb" else []
    yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    yield from [] if cells else [page]


def sentences(text: str) -> list[str]:
    """Return the sentences: no code, table, formula, quotation, link target or HTML tag."""
    text = re.sub(r"`[^`]*`|\$[^$\n]+\$", "x", re.sub(SKIPPED, "\n\n", text))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|<[^>\n]+>", r"\1", text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*+#]|\d+\.)\s)", text)
    found = (re.split(r"(?<=[.!?])[)*_\"”]*\s+", " ".join(block.split())) for block in blocks)
    return [sentence for block in found for sentence in block if sentence]


def main(patterns: list[str]) -> int:
    """Print what is wrong in each page, and how many sentences are long; return the number of mistakes."""
    wrong, every, long = list[str](), 0, 0
    for path in sorted(path for pattern in patterns or PAGES for path in ROOT.glob(pattern)):
        for sentence in (sentence for text in texts(path) for sentence in sentences(text)):
            words, name = len(re.findall(r"\w[\w.,'’/-]*", sentence)), path.relative_to(ROOT)
            every, long = every + 1, long + (words > LONG)
            wrong += [f"{name}: {words} words: {sentence}"] * (words > LONGEST)
            for instead, pattern in PRIVATE:
                found = re.finditer(rf"(?i)\b({pattern})\b", sentence)
                wrong += [f"{name}: '{term[0]}', say {instead}: {sentence}" for term in found]
    print(*wrong, f"{every} sentences, {long} of more than {LONG} words, {len(wrong)} mistakes", sep="\n")
    return len(wrong) + (long > LONG_FRACTION * every)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
