import re
from xml.etree import ElementTree

import pytest

from condnum.report.html import mathml

FORMULAS = [
    r"\kappa(S) = \sigma_1 / \sigma_k",
    r"\mathrm{RIR}(\theta) = \frac{\kappa(H_H(\theta))/\kappa(K_H)}{\kappa(H_P(\theta))/\kappa(K_P)}",
    r"\min_{w\in\mathbb{R}^{d}} \left\| X\theta w - y \right\|_2^2",
    r"R_{\text{well}}(S)=\tfrac12 \lVert S\rVert_2^2 - \frac{1}{2p}\lVert S\rVert_F^2",
    r"\sum_{i=1}^n \sqrt{x_i^{\top} x_i}\,,\quad \mathcal{L} \in \mathbb{N}, \hat x, f'(x), f'^2, a < b & c"[
        :-4
    ],
    r"\mathbf{x}^* \operatorname{rank}(K) \log \big( 3.14 \big) \{a\}",
    "κ₁ ≤ 2",
]


@pytest.mark.parametrize("tex", FORMULAS)
@pytest.mark.parametrize("display", [False, True])
def test_well_formed(tex: str, display: bool) -> None:
    html = mathml(tex, display=display)
    tree = ElementTree.fromstring(html)
    assert tree.tag == "math"
    arity = {
        "mfrac": 2,
        "msub": 2,
        "msup": 2,
        "msubsup": 3,
        "munder": 2,
        "munderover": 3,
        "mover": 2,
        "msqrt": 1,
    }
    for element in tree.iter():
        assert len(element) == arity.get(element.tag, len(element))
    assert "\\" not in html


@pytest.mark.parametrize(
    "tex",
    [
        r"\begin{pmatrix} a \end{pmatrix}",
        r"\nonsense x",
        r"\frac{1}",
        r"\text{a \b}",
        r"\text{a",
        r"\mathbb{r}",
        "x^",
        "x_1_2",
        "x^1^2",
        "{x",
        "x}",
        "a & b",
    ],
)
def test_what_is_not_understood_is_shown_as_source(tex: str) -> None:
    html = mathml(tex)
    assert html.startswith('<code class="tex">')
    assert re.sub(r"<[^>]+>", "", html).replace("&amp;", "&") == tex


def test_limits_stand_under_the_operator_in_display_only() -> None:
    assert "<munder>" in mathml(r"\min_x", display=True)
    assert "<msub>" in mathml(r"\min_x")


def test_letters() -> None:
    assert mathml(r"\mathbb{R}") == "<math><mi>ℝ</mi></math>"
    assert mathml(r"\mathbb A") == "<math><mi>𝔸</mi></math>"
    assert mathml(r"\mathcal{L}\mathcal{D}") == "<math><mi>ℒ</mi><mi>𝒟</mi></math>"
    assert mathml("a<b") == "<math><mi>a</mi><mo>&lt;</mo><mi>b</mi></math>"
