"""Notebook 6 in a real browser: as committed it runs without an error; solutions stay collapsed."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]


def test_in_jupyterlab(lab):
    notebook = lab("6_exercises", figures=0)
    texts = notebook.page.evaluate(
        """() => Array.from(window.jupyterapp.shell.currentWidget.content.model.cells)
            .flatMap(cell => cell.toJSON().outputs || [])
            .filter(output => output.output_type === 'execute_result')
            .map(output => String(output.data['text/plain'])).filter(text => !text.startsWith('VBox'))"""
    )
    assert texts == ["not answered yet"] * 11
    hidden = notebook.page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
            .filter(cell => cell.model.type === 'code' && cell.inputHidden).length"""
    )
    assert hidden == 11
    assert notebook.page.locator("details").count() >= 1
    assert not notebook.page.locator("details[open]").count()
    notebook.screenshot("6_exercises_top")
    heading = notebook.page.get_by_role("heading", name="4. Proposition 3.2 fails")
    for _ in range(20):
        if heading.count():
            break
        notebook.page.mouse.move(600, 500)
        notebook.page.mouse.wheel(0, 600)
        notebook.page.wait_for_timeout(200)
    heading.scroll_into_view_if_needed()
    notebook.screenshot("6_exercises")
    assert notebook.problems == []


def test_answers_on_a_page(voila):
    notebook = voila("6_exercises", figures=0)
    page = notebook.page
    page.wait_for_function(
        "() => document.querySelectorAll('.widget-text input').length >= 8", timeout=120_000
    )
    page.get_by_label("kappa =").fill("7")
    page.get_by_label("kappa =").press("Enter")
    check = page.get_by_role("button", name="Check")
    assert check.count() == 11
    check.first.click()
    page.get_by_text("That is the ratio of the axes themselves.").wait_for()
    page.get_by_label("kappa =").fill("7**2")
    check.first.click()
    page.get_by_text("✔ right.").wait_for()
    page.get_by_label("whiten(H) =").fill("inv(sqrtm(H))")
    check.nth(7).click()
    page.get_by_text("one step arrives").wait_for()
    notebook.screenshot("6_answers")
    assert notebook.problems == []
