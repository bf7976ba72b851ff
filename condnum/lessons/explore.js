// Explorers in a page: controls, figure and sentence. Live, a kernel computes; without one a recording answers.
{
  const add = (parent, tag, props = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), props);
    element.append(...children);
    parent?.append(element);
    return element;
  };

  const numeral = (value) => (Math.abs(value) >= 1e7 || (value && Math.abs(value) < 1e-4)
    ? value.toExponential(3).replace(/\.?0+e\+?/, "e")
    : Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 10 }));

  // What is typed stays, whatever answer comes meanwhile, until `take` has it: on leaving the field, or at Enter,
  // of which JupyterLab lets no `change` come. Returns what shows a value.
  condnum.keepTyped = (field, take) => {
    let typing = false, shown = "";
    const end = () => {
      if (!typing) return;
      typing = false;
      take(field.value);
    };
    field.addEventListener("input", () => { typing = true; });
    field.addEventListener("change", end);
    field.addEventListener("keydown", ({ key, isComposing }) => { if (key === "Enter" && !isComposing) end(); });
    field.addEventListener("blur", () => { typing = false; field.value = shown; });
    return (value) => {
      shown = value;
      if (!typing) field.value = value;
    };
  };

  // The value that a text gives a control, and the words for what it takes.
  const valueOf = ({ kind, options, low, high, whole }, text) => {
    if (kind !== "slider") return (options?.map(([value]) => value) ?? [true, false]).find((one) => String(one) === text);
    const number = Number(text.trim().replace(/,(?=\d{3}(\D|$))/g, "") || NaN);
    return number >= low && number <= high && (!whole || Number.isInteger(number)) ? number : undefined;
  };
  const taken = ({ kind, options, low, high, whole }) => (kind !== "slider"
    ? (options?.map(([value]) => value) ?? [true, false]).join(" or ")
    : `${whole ? "a whole number" : "a number"} from ${numeral(low)} to ${numeral(high)}`);

  // Rows of controls by their kind: made in a box, they call `change(value)`, and return what shows a value.
  condnum.rows = {
    choice(box, { options }, change) {
      const select = add(box, "select");
      options.forEach(([, text], index) => add(select, "option", { value: index }, text));
      select.onchange = () => change(options[select.value][0]);
      return (value) => { select.value = options.findIndex(([one]) => one === value); };
    },
    check(box, _, change) {
      const tick = add(box, "input", { type: "checkbox" });
      tick.onchange = () => change(tick.checked);
      return (value) => { tick.checked = value; };
    },
    slider(box, control, change, refuse) {
      const { name, label, low, high, log, whole, step, play, values, names = [] } = control;
      const said = add(box, "span", { className: "condnum-stop" }); // the name of a stop
      const typed = add(box, "input", { type: "text", inputMode: "decimal", className: "condnum-number" });
      const nearer = (value) => (best, one, i) => (Math.abs(one - value) < Math.abs(values[best] - value) ? i : best);
      const at = (value) => (values ? values.reduce(nearer(value), 0) : log ? Math.log10(value) : value);
      const from = (mark) => { // without the last digits of a mark such as 0.30000000000000004
        const value = Number((log ? 10 ** mark : mark).toPrecision(12));
        return values ? values[mark] : Math.min(high, Math.max(low, whole ? Math.round(value) : value));
      };
      const [min, max] = values ? [0, values.length - 1] : [at(low), at(high)];
      const slide = add(box, "input", { type: "range", min, max, step: values ? 1 : step });
      let shown;
      const write = condnum.keepTyped(typed, (text) => {
        const value = valueOf(control, text);
        if (value !== undefined) { change(value); return; }
        refuse(`${label} must be ${taken(control)}, got '${text.trim()}'.`, name);
        show(shown);
      });
      const show = (value) => {
        shown = value;
        slide.value = at(value);
        const name = names[values?.indexOf(value)] ?? "";
        said.textContent = Number(name) === value ? "" : name;
        slide.setAttribute("aria-valuetext", `${numeral(value)} ${said.textContent}`.trim());
        write(numeral(value));
      };
      slide.oninput = () => change(from(slide.valueAsNumber));
      if (!play) return show;
      const button = add(box, "button", { className: "condnum-play", ariaLabel: "Play or pause" }, "▶");
      let timer = 0;
      const turn = (on) => {
        clearInterval(timer);
        timer = on && setInterval(() => {
          if (slide.valueAsNumber >= max || !box.isConnected) turn(0);
          else { slide.stepUp(); slide.oninput(); }
        }, play);
        button.textContent = on ? "⏸" : "▶";
      };
      button.onclick = () => {
        if (!timer && slide.valueAsNumber >= max) { slide.value = min; slide.oninput(); }
        turn(timer ? 0 : 1);
      };
      return show;
    },
  };

  function row(parent, control, change, refuse) {
    const { help, kind } = control;
    const box = add(parent, "div", { className: `condnum-row condnum-${kind}`, title: help || "" });
    const label = add(box, "label", { innerHTML: control.label }).textContent;
    const show = condnum.rows[kind](box, { ...control, label }, change, refuse);
    const parts = box.querySelectorAll("input, select, button");
    for (const part of parts) if (part.tagName !== "BUTTON") part.setAttribute("aria-label", label);
    return { show, alert: () => box.querySelector("[role=alert]") ?? add(box, "span", { role: "alert" }) };
  }

  // The points of the drawn traces as CSV, a row each: panel, trace, x, y, and z of a heat map.
  const table = ({ _fullData: traces }) => {
    const cell = (value) => {
      const text = String(value ?? "").replace(/<[^>]*>/g, "");
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const rows = traces.flatMap(({ name, xaxis, x = [], y = [], z }) => {
      const head = [xaxis.slice(1) || 1, name];
      if (!z) return Array.from(x, (at, i) => [...head, at, y[i], ""]);
      return Array.from(z).flatMap((line, i) => Array.from(line, (value, j) => [...head, x[j] ?? j, y[i] ?? i, value]));
    });
    return [["panel", "trace", "x", "y", "z"], ...rows].map((row) => row.map(cell).join(",")).join("\n");
  };

  // An explorer in `host`. `source.ask(state)` promises {figure, sentence, table, error}; a recording knows `nearest`
  // and what it `lacks`, a kernel the `code` of what it shows.
  condnum.mount = (host, spec, source) => {
    host.classList.add("condnum-explorer");
    const side = add(host, "div", { className: "condnum-side" });
    const place = add(host, "div", { className: "condnum-place" });
    const verdict = add(place, "div", { className: "condnum-verdict", role: "status" });
    const plot = add(place, "div", { className: "condnum-plot" });
    const folded = add(null, "details", { className: "condnum-more" }, add(null, "summary", {}, "More settings"));
    let state = { ...spec.state }, payload = null, running = 0, waiting = false, note = [];
    const rows = {}, change = (part, said = "") => {
      const wanted = { ...state, ...part };
      state = source.nearest?.(wanted, part) ?? wanted;
      const far = spec.controls.find(({ name, kind }) => kind === "slider" && numeral(state[name]) !== numeral(wanted[name]));
      note = far ? [`${numeral(state[far.name])} is the nearest value to ${numeral(wanted[far.name])} that this page has `
        + "recorded; in the notebook you can choose any.", far.name] : [said];
      show();
      ask();
    };
    const presets = add(side, "div", { className: "condnum-presets" });
    for (const { label, settings } of spec.presets)
      add(presets, "button", { onclick: () => change({ ...spec.state, ...settings }) }, label);
    const back = { title: "Back to the settings at the start", onclick: () => change(spec.state) };
    add(presets, "button", back, "Reset");
    for (const control of spec.controls) {
      const { name, live } = control, set = (value) => change({ [name]: value });
      rows[name] = row(live ? folded : side, control, set, say);
    }
    if (folded.children.length > 1) side.append(folded);
    const below = add(host, "div", { className: "condnum-below" }), alarm = add(side, "div", { role: "alert" });
    const tools = add(place, "div", { className: "condnum-tools" });
    const tool = (label, title, onclick) => add(tools, "button", { title, onclick }, label);
    if (source.code) {
      const copy = tool("Copy settings as code", "Copy the line of Python that makes this explorer again", () => {
        Promise.resolve().then(() => navigator.clipboard.writeText(source.code())).then(
          () => { copy.textContent = "Copied"; setTimeout(() => { copy.textContent = "Copy settings as code"; }, 2000); },
          () => say(`This browser keeps its clipboard to itself; select and copy: ${source.code()}`),
        );
      });
    }
    tool("Figure as PNG", "Download what is drawn as a picture", () => {
      const { width, height } = plot._fullLayout;
      Plotly.downloadImage(plot, { format: "png", scale: 2, width, height, filename: spec.name });
    });
    tool("Data as CSV", "Download the points of all traces as a table", () => {
      const url = URL.createObjectURL(new Blob([table(plot)], { type: "text/csv" }));
      Object.assign(document.createElement("a"), { href: url, download: `${spec.name}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    });

    if (source.lacks) add(tools, "span", { className: "condnum-lacks", innerHTML: source.lacks });

    function say(error, field = "") {
      for (const line of [alarm, ...host.querySelectorAll(".condnum-row [role=alert]")]) line.textContent = "";
      if (!error) return;
      const line = rows[field]?.alert() ?? alarm;
      line.textContent = error;
      if (folded.contains(line)) folded.open = true;
    }
    function show() {
      for (const { name } of spec.controls) rows[name].show(state[name]);
    }
    // The latest state alone: those that a drag has passed are not computed. A kernel is far: it has `most` on the way.
    async function ask() {
      waiting = true;
      if (running === (source.most ?? 1)) return;
      running += 1;
      while (waiting) {
        waiting = false;
        host.ariaBusy = "true";
        draw(await source.ask(state));
      }
      running -= 1;
      host.ariaBusy = String(running > 0);
    }
    async function draw(next) {
      payload = next;
      if (next.state && !waiting && running < 2) { state = next.state; show(); } // else others follow
      source.written?.(state);
      if (next.error) say(next.error, next.field); else say(...note);
      verdict.innerHTML = next.sentence ?? "";
      below.innerHTML = next.table ?? "";
      host.classList.toggle("condnum-blank", !next.figure);
      if (!next.figure) return;
      await repaint(condnum.follow);
      if (plot.clicked) return;
      plot.clicked = true;
      plot.on("plotly_click", ({ points: [point] }) => { // a trace's meta says which controls a click sets
        const part = Object.entries(point.data.meta?.click ?? {}).filter(([name]) => name in rows);
        if (part.length) change(Object.fromEntries(part.map(([name, axis]) => [name, point[axis]])));
      });
    }
    function repaint(paint = condnum.paint) {
      host.style.colorScheme = condnum.dark() ? "dark" : "light";
      return payload?.figure && paint(plot, payload.figure);
    }
    let width = 0;
    const watch = new ResizeObserver(() => { // also where the page had no width at first
      if (Math.abs(plot.clientWidth - width) > 1) { width = plot.clientWidth; repaint(); }
    });
    watch.observe(plot);
    const off = condnum.onTheme(() => repaint());
    if (source.now) draw(source.now);
    else ask();
    return { draw, change, state: () => state, end: () => { watch.disconnect(); off(); } };
  };

  // Plays a recording. The address holds what differs from the start, so that a situation can be linked to;
  // explorers after the first of a page have a number before their names there.
  condnum.play = async (host, recording, number = 0) => {
    const source = await condnum.decode(recording), { controls, state: start } = source.spec;
    const before = number ? `${number + 1}.` : "";
    const words = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    const written = (state) => {
      const all = words();
      for (const { name } of controls)
        if (state[name] === start[name]) all.delete(before + name); else all.set(before + name, state[name]);
      if (String(all) !== String(words())) history.replaceState(null, "", `#${all}`);
    };
    const mounted = condnum.mount(host, source.spec, { ...source, written });
    const heed = () => {
      const asked = { ...start }, wrong = [];
      for (const control of controls) {
        const { name } = control, text = words().get(before + name), value = valueOf(control, text ?? "");
        if (value !== undefined) asked[name] = value;
        else if (text !== null) wrong.push(`The address has ${before}${name}=${text}: it takes ${taken(control)}.`);
      }
      mounted.change(asked, wrong.join(" "));
    };
    addEventListener("hashchange", heed);
    heed();
    return mounted;
  };
}
