r"""TeX formulas as MathML, which browsers draw by themselves: reports need no script from a network.

Covers what prose on linear algebra uses: scripts, fractions, roots, Greek, accents, operators,
`\text`, `\mathbb`, `\left … \right`. Anything else is shown as its TeX source rather than wrongly.
"""

from __future__ import annotations

import re
from html import escape


def _table(text: str) -> dict[str, str]:
    """Read pairs of a command's name and its character."""
    return dict(re.findall(r"(\S+) (\S+)", text))


_GREEK = _table(
    """
    alpha α  beta β  gamma γ  delta δ  epsilon ϵ  zeta ζ  eta η  theta θ  iota ι  kappa κ  lambda λ  mu μ
    nu ν  xi ξ  pi π  rho ρ  sigma σ  tau τ  upsilon υ  phi ϕ  chi χ  psi ψ  omega ω  varepsilon ε
    vartheta ϑ  varphi φ  varrho ϱ  Gamma Γ  Delta Δ  Theta Θ  Lambda Λ  Xi Ξ  Pi Π  Sigma Σ  Phi Φ  Psi Ψ
    Omega Ω  ell ℓ  infty ∞  partial ∂  nabla ∇  emptyset ∅  varnothing ∅  Re ℜ  hbar ℏ
    """
)
_OPERATORS = _table(
    """
    cdot ⋅  times ×  le ≤  leq ≤  ge ≥  geq ≥  ne ≠  neq ≠  approx ≈  sim ∼  simeq ≃  equiv ≡  propto ∝
    in ∈  notin ∉  subset ⊂  subseteq ⊆  cup ∪  cap ∩  to →  rightarrow →  leftarrow ←  Rightarrow ⇒
    Leftrightarrow ⇔  iff ⇔  mapsto ↦  pm ±  mp ∓  ll ≪  gg ≫  succeq ⪰  preceq ⪯  succ ≻  prec ≺  dots …
    ldots …  cdots ⋯  vdots ⋮  mid ∣  parallel ∥  perp ⊥  top ⊤  circ ∘  odot ⊙  otimes ⊗  oplus ⊕  forall ∀
    exists ∃  lVert ‖  rVert ‖  Vert ‖  lvert |  rvert |  vert |  langle ⟨  rangle ⟩  lfloor ⌊  rfloor ⌋
    lceil ⌈  rceil ⌉  star ⋆  dagger †  setminus ∖  colon :  ast ∗  prime ′  uparrow ↑  downarrow ↓  gets ←
    land ∧  lor ∨  neg ¬  div ÷  | ‖  { {  } }  % %  # #  & &  _ _  $ $
    """
)
_LARGE = {"sum": "∑", "prod": "∏", "int": "∫", "bigcup": "⋃", "bigcap": "⋂", "bigoplus": "⨁"}
_LIMITS = {"max", "min", "sup", "inf", "lim", "argmin", "argmax"}
_FUNCTIONS = {"log", "exp", "ln", "det", "dim", "ker", "sin", "cos", "tan", "deg", "gcd", "Pr", *_LIMITS}
_ACCENTS = {
    "hat": "^", "widehat": "^", "tilde": "~", "widetilde": "~", "bar": "¯", "overline": "¯",
    "vec": "→", "dot": "˙", "ddot": "¨",
}  # fmt: skip
_SPACES = {",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, " ": 0.25, "quad": 1, "qquad": 2, "!": 0}  # em
_SIZES = {"big", "Big", "bigl", "bigr", "Bigl", "Bigr", "displaystyle", "textstyle", "limits", "nolimits"}
_TEXT = {"text", "mathrm", "textrm", "operatorname", "mathtt", "mathsf", "textit"}
_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|\d+(?:\.\d+)?|\s+|.", re.DOTALL)


class _UnsupportedError(Exception):
    """The formula uses something that this converter does not know."""


def mathml(tex: str, *, display: bool = False) -> str:
    r"""Convert a formula, without its dollar signs, to HTML.

    Examples:
        >>> mathml(r"\sigma_1")
        '<math><msub><mi>σ</mi><mn>1</mn></msub></math>'
        >>> mathml(r"\unknown{x}")
        '<code class="tex">\\unknown{x}</code>'
    """
    try:
        parser = _Parser(tex, display)
        body = parser.row(end=None)
    except (_UnsupportedError, IndexError):
        return f'<code class="tex">{escape(tex.strip())}</code>'
    return f'<math display="block">{body}</math>' if display else f"<math>{body}</math>"


class _Parser:
    """A recursive descent over TeX tokens; every method returns MathML text."""

    def __init__(self, tex: str, display: bool) -> None:
        self.tokens = _TOKEN.findall(tex)
        self.position = 0
        self.display = display

    def peek(self) -> str | None:
        """Return the next token that is not white space, without taking it."""
        while self.position < len(self.tokens) and self.tokens[self.position].isspace():
            self.position += 1
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str:
        """Take the next token; an unfinished formula raises `IndexError`."""
        if self.peek() is None:
            raise IndexError
        self.position += 1
        return self.tokens[self.position - 1]

    def row(self, end: str | None) -> str:
        """Read items up to the closing token."""
        parts = []
        while self.peek() != end:
            parts.append(self.scripted())
        if end is not None:
            self.take()
        return "".join(parts)

    def scripted(self) -> str:
        """Read an atom with its sub- and superscripts and primes."""
        limits = self.display and (self.peek() or "")[1:] in {*_LARGE, *_LIMITS}
        base, below, above, primes = self.atom(), "", "", ""
        while (token := self.peek()) in ("_", "^", "'"):
            self.take()
            if token == "_" and not below:
                below = self.atom()
            elif token == "^" and not above:
                above = self.atom()
            elif token == "'":
                primes += "<mo>′</mo>"
            else:
                raise _UnsupportedError
        if primes:
            above = f"<mrow>{primes}{above}</mrow>"
        if not (below or above):
            return base
        name = ("under" if limits else "sub") * bool(below) + ("over" if limits else "sup") * bool(above)
        return f"<m{name}>{base}{below}{above}</m{name}>"

    def atom(self) -> str:
        """Read one symbol, group or command."""
        token = self.take()
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token in ("}", "^", "_", "&", "$"):
            raise _UnsupportedError
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        return f"<mo>{escape({'-': '−', '*': '∗', '~': ' '}.get(token, token))}</mo>"

    def command(self, name: str) -> str:
        """Read what follows a command's name."""
        if name in _GREEK:
            return f"<mi>{_GREEK[name]}</mi>"
        if name in _OPERATORS:
            return f"<mo>{escape(_OPERATORS[name])}</mo>"
        if name in _LARGE:
            return f"<mo>{_LARGE[name]}</mo>"
        if name in _FUNCTIONS:
            return f'<mi mathvariant="normal">{name}</mi>'
        if name in _SPACES:
            return f'<mspace width="{_SPACES[name]}em"/>'
        if name in _ACCENTS:
            return f'<mover accent="true">{self.atom()}<mo>{_ACCENTS[name]}</mo></mover>'
        if name in ("frac", "tfrac", "dfrac"):
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if name.rstrip("*") in _TEXT:
            kind = "mtext" if name.startswith("text") else "mi"
            return f'<{kind} mathvariant="normal">{escape(self.text())}</{kind}>'
        if name in ("mathbf", "boldsymbol", "bm", "textbf"):
            return f'<mrow style="font-weight:bold">{self.atom()}</mrow>'
        if name in ("mathbb", "mathcal"):
            return f"<mi>{''.join(_letter(name, letter) for letter in self.text())}</mi>"
        if name in ("left", "right"):
            fence = self.take()
            sign = _OPERATORS.get(fence[1:], "") if fence.startswith("\\") else fence.replace(".", "")
            return f'<mo fence="true" stretchy="true">{escape(sign)}</mo>'
        if name in _SIZES:
            return ""
        raise _UnsupportedError

    def text(self) -> str:
        """Read a braced argument, or one token, literally."""
        if self.take() != "{":
            return self.tokens[self.position - 1]
        end = self.tokens.index("}", self.position) if "}" in self.tokens[self.position :] else None
        if end is None or any(word.startswith(("\\", "{")) for word in self.tokens[self.position : end]):
            raise _UnsupportedError
        words, self.position = self.tokens[self.position : end], end + 1
        return "".join(words)


def _letter(alphabet: str, letter: str) -> str:
    """Return a capital in double-struck or script form; Unicode keeps the oldest ones elsewhere."""
    if not ("A" <= letter <= "Z"):
        raise _UnsupportedError
    old = {"mathbb": dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True))}.get(
        alphabet, dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True))
    )
    start = 0x1D538 if alphabet == "mathbb" else 0x1D49C
    return old.get(letter, chr(start + ord(letter) - ord("A")))
