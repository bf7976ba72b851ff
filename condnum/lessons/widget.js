// What follows needs a kernel: anywidget calls `initialize` once a widget, and `render` once a view.

// One for all widgets of a page. Plotly comes from the kernel, which is asked once, however long it is busy.
function begun() {
  const live = { asked: new WeakSet() }; // kernels
  live.plotly = new Promise((done) => { live.arrived = done; });
  return live;
}
const live = globalThis.condnumLive ??= begun();

function ask(model) {
  const { widget_manager: kernel } = model, again = () => live.asked.delete(kernel);
  if (globalThis.Plotly || live.asked.has(kernel)) return;
  live.asked.add(kernel);
  model.on("msg:custom", ({ kind }, [code]) => {
    if (kind !== "plotly") return;
    if (globalThis.Plotly) { live.arrived(); return; } // JupyterLab has one as well, which can come first
    const script = document.createElement("script");
    script.src = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    script.onload = live.arrived;
    document.head.append(script);
  });
  onLoss(model, again);
  model.on("destroy", again);
  model.send({ kind: "plotly" });
}

// anywidget drops all messages to a widget that was not there within two seconds, on a slow machine for ever.
function hear(model) {
  model.on("change:condnum", (whole) => {
    const handle = Object.getPrototypeOf(whole.constructor.prototype)?._handle_comm_msg; // ipywidgets' own
    if (handle) whole.comm?.on_msg((message) => handle.call(whole, message));
  });
  model.set("condnum", true); // the event brings the model itself
}

const GONE = "The kernel restarted: run this cell again.";
// Calls `act` when the kernel of a widget ends, also to start anew. Returns what forgets it.
function onLoss(model, act) {
  const { statusChanged } = model.widget_manager?.kernel ?? {};
  const heed = (_, status) => { if (/restarting|terminating|dead/.test(status)) act(); };
  statusChanged?.connect(heed);
  return () => statusChanged?.disconnect(heed);
}

function figure(model, el) {
  const plot = el.appendChild(document.createElement("div"));
  el.classList.add("condnum-figure");
  const draw = () => condnum.paint(plot, JSON.parse(model.get("payload")).figure);
  const watch = new ResizeObserver(draw), off = condnum.onTheme(draw);
  watch.observe(el);
  model.on("change:payload", draw);
  draw();
  return () => { watch.disconnect(); off(); };
}

function explorer(model, el) {
  const spec = structuredClone(model.get("declaration")), payload = () => JSON.parse(model.get("payload"));
  const asked = new Map(); // what waits for the answer to a number
  let gone = false;
  const left = () => ({ ...payload(), error: GONE, field: "" });
  const source = {
    now: payload(),
    most: 3,
    ask: (state) => new Promise((done) => {
      if (gone) { done(left()); return; }
      const id = Math.random(); // no other view of the widget has it
      asked.set(id, done);
      model.send({ kind: "state", id, state });
    }),
    code: () => payload().code,
  };
  const mounted = condnum.mount(el, spec, source);
  for (const part of el.querySelectorAll("input, select, button, summary"))
    part.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes the arrow keys
  model.on("change:payload", () => {
    const next = payload(), done = asked.get(next.id);
    asked.delete(next.id);
    if (done) done(next);
    else if (!asked.size) mounted.draw(next); // else the answer to this view follows
  });
  const forget = onLoss(model, () => {
    gone = true;
    if (!asked.size) mounted.draw(left());
    for (const done of asked.values()) done(left());
    asked.clear();
  });
  return () => { forget(); mounted.end(); };
}

export default {
  initialize({ model }) {
    hear(model);
    ask(model);
  },
  async render({ model, el }) {
    let gone = false;
    const forget = onLoss(model, () => { gone = true; el.textContent = GONE; });
    if (!globalThis.Plotly) {
      el.textContent = "Waiting for the kernel…";
      await live.plotly;
    }
    forget();
    if (gone) return undefined;
    el.textContent = "";
    return (model.get("declaration").controls ? explorer : figure)(model, el);
  },
};
