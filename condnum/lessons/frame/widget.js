// What follows needs a kernel: anywidget calls `render`. Plotly comes from the kernel once a page.
async function plotly(model) {
  while (!globalThis.Plotly) {
    globalThis.condnumPlotly ??= new Promise((done) => {
      model.on("msg:custom", (message, [code]) => {
        if (message.kind !== "plotly") return;
        const script = document.createElement("script");
        script.src = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
        script.onload = done;
        document.head.append(script);
      });
      model.send({ kind: "plotly" });
    });
    await Promise.race([globalThis.condnumPlotly, new Promise((late) => setTimeout(late, 10000))]);
    if (!globalThis.Plotly) globalThis.condnumPlotly = null; // the kernel that was asked is gone
  }
}

// The kernel opens a widget before it has computed what the widget shows: a page can be faster.
function filled(model) {
  return new Promise((done) => {
    const look = () => { if (model.get("payload") !== "{}") done(); };
    model.on("change:payload", look);
    look();
  });
}

condnum.rows.text = (box, { hint, upload }, change) => {
  const make = (tag, props) => box.appendChild(Object.assign(document.createElement(tag), props));
  const text = make("input", { type: "text", placeholder: hint, spellcheck: false });
  const show = condnum.keepTyped(text, change);
  if (upload) {
    const file = make("input", { type: "file", accept: upload.accept, hidden: true });
    make("button", { innerHTML: upload.label, title: upload.help, onclick: () => file.click() });
    file.onchange = () => { if (file.files.length) upload.send(file.files[0]); file.value = ""; };
  }
  return show;
};

function figure(model, el) {
  const plot = document.createElement("div");
  el.classList.add("condnum-figure");
  el.append(plot);
  const draw = () => condnum.paint(plot, JSON.parse(model.get("payload")).figure);
  const watch = new ResizeObserver(draw), off = condnum.onTheme(draw);
  watch.observe(el);
  model.on("change:payload", draw);
  draw();
  return () => { watch.disconnect(); off(); };
}

function explorer(model, el) {
  const spec = structuredClone(model.get("declaration")), payload = () => JSON.parse(model.get("payload"));
  const tell = (kind, more = {}, buffers = []) => model.send({ kind, ...more }, undefined, buffers);
  for (const control of spec.controls) {
    if (control.upload) control.upload.send = async (file) => {
      tell("upload", { control: control.name, name: file.name }, [await file.arrayBuffer()]);
    };
  }
  let asked = 0, answer = null;
  const source = {
    now: payload(),
    ask: (state) => new Promise((done) => { answer = done; tell("state", { id: ++asked, state }); }),
    code: () => payload().code,
  };
  const mounted = condnum.mount(el, spec, source);
  for (const part of el.querySelectorAll("input, select, button, summary"))
    part.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes the arrow keys
  model.on("change:payload", () => {
    const next = payload();
    if (answer && next.id < asked) return; // late: the answer to a newer question follows
    if (!answer || next.id !== asked) { mounted.draw(next); return; }
    answer(next);
    answer = null;
  });
  return mounted.end;
}

export default {
  async render({ model, el }) {
    await Promise.all([plotly(model), filled(model)]);
    return (model.get("declaration").controls ? explorer : figure)(model, el);
  },
};
