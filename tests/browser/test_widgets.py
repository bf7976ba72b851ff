"""Widgets in Chromium on models whose kernel is this process, which answers when a test says so."""

import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.condition_number import GradientDescentExplorer

pytestmark = pytest.mark.browser

#: `add(manager, traits)` opens a widget without a view; what it sends waits in `sent` until `deliver`
#: hands it to Python, which returns the new payload.
_MODELS = """async script => {
    const source = new Blob([script], {type: 'text/javascript'}), statuses = new Set();
    const statusChanged = {connect: act => statuses.add(act), disconnect: act => statuses.delete(act)};
    const manager = () => ({kernel: {statusChanged}});
    Object.assign(window, {sent: [], models: [], managers: [manager(), manager()]});
    window.add = async (number, traits) => {
        const heard = {}, state = {...traits};
        const model = {
            widget_manager: managers[number], get: name => state[name], off: () => {},
            on: (name, act) => (heard[name] ??= []).push(act),
            tell: (name, ...what) => (heard[name] ?? []).forEach(act => act(...what)),
            set: (name, value) => {
                if (state[name] === value) return;
                state[name] = value;
                model.tell(`change:${name}`, model, value);
            },
            send: message => sent.push({model, message}),
        };
        const { default: widget } = await import(URL.createObjectURL(source)); // anew, as anywidget does
        model.widget = widget;
        models.push(model);
        await widget.initialize({ model });
    };
    window.view = model => void models[model].widget.render({
        model: models[model], el: document.body.appendChild(document.createElement('div')),
    });
    window.end = status => [...statuses].forEach(act => act(null, status));
    window.asked = () => sent.filter(({ message }) => message.kind === 'plotly').length;
    window.deliver = async () => {
        for (const { model, message } of sent.splice(0))
            if (message.kind === 'state') model.set('payload', await kernel(message));
    };
    window.stub = `globalThis.Plotly = {react: async (plot, data, { title }) => {
        plot.on = () => {};
        plot.dataset.title = title.text;
    }}`;
    window.plotly = model => models[model].tell('msg:custom', {kind: 'plotly'}, [stub]);
}"""


@pytest.fixture
def widgets(window):
    """A page that can open widgets of one explorer."""
    explorer = GradientDescentExplorer()

    def kernel(message):
        explorer._on_message(None, message, [])
        return explorer.payload

    window.expose_function("kernel", kernel)
    window.evaluate(_MODELS, explorer._esm)
    window.traits = {"declaration": explorer.declaration, "payload": explorer.payload}
    return window


def add(page, manager=0, views=1):
    page.evaluate("([number, traits]) => add(number, traits)", [manager, page.traits])
    for _ in range(views):
        page.evaluate("view(models.length - 1)")


def drawn(page, views):
    count = "document.querySelectorAll('.condnum-plot[data-title]').length"
    page.wait_for_function(f"{count} === {views}")


def shown(page, view):
    """What the fields and the picture of a view have, and whether it waits for an answer."""
    one = page.locator(".condnum-explorer").nth(view)
    field = one.get_by_role("textbox", name="condition number κ").input_value()
    title = one.locator(".condnum-plot").get_attribute("data-title")
    return field, title.split("κ = ")[1].split(",")[0], one.get_attribute("aria-busy") == "true"


def ask(page, view, kappa):
    field = page.get_by_role("textbox", name="condition number κ").nth(view)
    field.fill(str(kappa))
    field.press("Enter")


def test_an_explorer_in_two_cells_is_one(widgets):
    add(widgets, views=2)
    widgets.evaluate("plotly(0)")
    drawn(widgets, 2)
    for view in (0, 1):
        ask(widgets, 1 - view, 37)
        widgets.evaluate("deliver()")
        assert [shown(widgets, one) for one in (0, 1)] == 2 * [("37", "37", False)]
        for one in (view, 1 - view):  # the second asks for what is drawn
            widgets.get_by_role("button", name="Reset").nth(one).click()
            widgets.evaluate("deliver()")
            assert [shown(widgets, each) for each in (0, 1)] == 2 * [("10", "10", False)]
    ask(widgets, 0, 20)
    ask(widgets, 1, 30)  # before the other is answered: the later one holds in both
    widgets.evaluate("deliver()")
    assert [shown(widgets, one) for one in (0, 1)] == 2 * [("30", "30", False)]


def test_a_kernel_is_asked_once_for_plotly_and_the_page_says_that_it_waits(widgets):
    widgets.clock.install()
    add(widgets)
    add(widgets)
    add(widgets, manager=1)  # another notebook, whose kernel may be free
    widgets.clock.run_for(600_000)
    assert widgets.evaluate("asked()") == 2
    assert widgets.get_by_text("Waiting for the kernel…").count() == 3
    widgets.evaluate("plotly(2)")
    drawn(widgets, 3)
    assert widgets.get_by_text("Waiting for the kernel…").count() == 0
    add(widgets)
    assert widgets.evaluate("asked()") == 2


def test_plotly_may_come_from_elsewhere_meanwhile(widgets):
    """JupyterLab's own, which shows plain figures."""
    add(widgets)
    widgets.evaluate("eval(stub)")
    add(widgets)
    widgets.evaluate("plotly(0)")
    drawn(widgets, 2)


@pytest.mark.parametrize("status", ["restarting", "autorestarting", "dead"])
def test_a_kernel_that_ends_is_told(widgets, status):
    """In a view that waits for Plotly, in one that waits for an answer, and when its controls are moved."""
    told = widgets.get_by_text("The kernel restarted: run this cell again.")
    add(widgets)
    widgets.evaluate("status => end(status)", status)
    told.wait_for()
    add(widgets)
    assert widgets.evaluate("asked()") == 2  # the first question is lost
    widgets.evaluate("plotly(1)")
    drawn(widgets, 1)
    assert told.count() == 1
    ask(widgets, 0, 37)
    assert shown(widgets, 0) == ("37", "10", True)
    widgets.evaluate("status => end(status)", status)
    told.nth(1).wait_for()
    assert shown(widgets, 0) == ("10", "10", False)
    ask(widgets, 0, 50)
    widgets.wait_for_function("document.querySelector('.condnum-number').value === '10'")
    assert shown(widgets, 0) == ("10", "10", False)
    assert told.count() == 2


def test_listeners_of_the_window_do_not_grow_with_widgets(widgets):
    widgets.evaluate("""() => {
        window.listened = [];
        const listen = window.addEventListener;
        window.addEventListener = (name, ...rest) => {
            listened.push(name);
            listen.call(window, name, ...rest);
        };
    }""")
    for _ in range(3):
        add(widgets)
    widgets.evaluate("plotly(0)")
    drawn(widgets, 3)
    found = [name for name in widgets.evaluate("listened") if name.endswith("print")]
    assert found == ["beforeprint", "afterprint"]
