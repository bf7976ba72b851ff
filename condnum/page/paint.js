// Figures in a page: plotly's JSON in the colours and the width of the page.
const condnum = {};
{
  const FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif";
  const LOOKS = { // ink, grid, paper
    light: ["#2a3442", "#e3e8ef", "#ffffff"],
    dark: ["#e3e8ef", "#323c4a", "#14181e"],
  };
  const BLACK = new Set(["#000000", "#222222", "black"]); // drawn in the ink of the page
  // Pixels of a column of panels with and without what is beside it, and of a figure, below which panels are stacked.
  const COLUMN = 210, SLIM = 160, LEAST = 600;
  const MODEBAR = 120; // pixels of the buttons beside the title
  const PAPER = 940; // pixels of a page's width

  // One for all widgets of a page, each of which evaluates this file. On paper figures are light, of one width.
  function begun() {
    const page = { printing: false, redraws: new Set() };
    const print = (started) => {
      if (page.printing === started) return;
      page.printing = started;
      for (const redraw of page.redraws) redraw();
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
    return page;
  }
  const page = globalThis.condnumPage ??= begun();
  condnum.printing = () => page.printing;
  condnum.dark = () => {
    if (page.printing) return false;
    const { jpThemeLight, theme } = document.body.dataset; // JupyterLab's, the site's
    if (jpThemeLight) return jpThemeLight === "false";
    return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  };
  // Calls `redraw` when the page gets dark or light, goes to paper, or is back from it.
  condnum.onTheme = (redraw) => {
    const watch = new MutationObserver(redraw), media = matchMedia("(prefers-color-scheme: dark)");
    page.redraws.add(redraw);
    watch.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-theme"] });
    media.addEventListener("change", redraw);
    return () => { page.redraws.delete(redraw); watch.disconnect(); media.removeEventListener("change", redraw); };
  };

  const axes = (layout, letter) => Object.keys(layout).filter((key) => key.match(`^${letter}axis\\d*$`));
  const pen = document.createElement("canvas").getContext("2d");
  const TAG = /<\/?[a-z][^<>]*>/gi, WORD = /(?:<\/?[a-z][^<>]*>| *= *|[^ ])+/gi; // "a = b" stays on one line
  // Text in lines of a width. Breaks that were made for another width, which a space stands before, go.
  const wrapped = (text, room, size, beside = 0) => {
    let small = false; // plotly's <sup> has 70 % of the size
    return text.replaceAll(" <br>", " ").split("<br>").map((line) => {
      small ||= line.startsWith("<sup>");
      pen.font = `${small ? 0.7 * size : size}px ${FONT}`;
      const lines = [""];
      for (const word of line.match(WORD) ?? []) {
        const longer = `${lines.at(-1)} ${word}`.trim(), wide = pen.measureText(longer.replace(TAG, "")).width;
        if (wide > (small ? room : room - beside) && lines.at(-1)) lines.push(word);
        else lines[lines.length - 1] = longer;
      }
      small &&= !line.endsWith("</sup>");
      return lines.join("<br>");
    }).join("<br>");
  };
  const lineCount = (text = "") => text.split("<br>").length;

  const inLegend = (data) => data.filter((trace) => (trace.type ?? "scatter") === "scatter" && trace.showlegend !== false);
  const widest = (texts, size) => {
    pen.font = `${size}px ${FONT}`;
    const lines = texts.flatMap((text = "") => text.split("<br>"));
    return Math.max(0, ...lines.map((line) => pen.measureText(line.replace(TAG, "")).width));
  };

  // The width that names of rows on the left and a legend on the right leave to the panels.
  function roomOf(data, layout, width) {
    const { orientation, x = 1.02, title } = layout.legend ?? {}, { l = 80, r = 80 } = layout.margin ?? {};
    const listed = inLegend(data), size = layout.font?.size ?? 12;
    const legend = listed.length > 1 && layout.showlegend !== false && orientation !== "h" && x > 1;
    const rows = axes(layout, "y").flatMap((key) => layout[key].ticktext ?? []);
    const right = legend ? 45 + widest([title?.text, ...listed.map(({ name }) => name)], size) : 0;
    return width - Math.max(l, 14 + widest(rows, size)) - Math.max(r, right);
  }

  // Titles that are too long for the width get more lines, and the figure the height for these.
  function wrapTitles(data, layout, width) {
    const { title = {}, margin = {} } = layout, size = title.font?.size ?? 17, { height = 450 } = layout;
    const text = wrapped(title.text ?? "", width - 20, size, MODEBAR), rows = axes(layout, "y").map((key) => layout[key]);
    const tops = [...new Set(rows.map(({ domain = [0, 1] }) => domain[1]))];
    const inner = roomOf(data, layout, width);
    let first = 0, others = 0; // pixels by which the titles of the panels grow, in the first row and in others
    for (const note of layout.annotations ?? []) { // titles of panels
      if (note.xref !== "paper" || note.yref !== "paper" || note.showarrow || note.xanchor !== "center") continue;
      const panel = axes(layout, "x").map((key) => layout[key].domain ?? [0, 1])
        .find(([left, right]) => left <= note.x && note.x <= right);
      if (!panel) continue;
      const font = note.font?.size ?? 16, before = lineCount(note.text);
      note.text = wrapped(note.text, (panel[1] - panel[0]) * inner, font);
      const longer = 1.3 * font * (lineCount(note.text) - before);
      if (note.y > 0.99) first = Math.max(first, longer); else others = Math.max(others, longer);
    }
    const more = 1.3 * size * (lineCount(text) - lineCount(title.text)) + first, apart = others * (tops.length - 1);
    if (!more && !apart && text === title.text) return;
    const old = height - (margin.t ?? 100) - (margin.b ?? 80);
    const moved = (y) => (y * old + others * tops.filter((top) => top < y - 0.001).length) / (old + apart);
    if (apart) { // rows of panels move away from each other
      for (const row of rows) row.domain = (row.domain ?? [0, 1]).map(moved);
      for (const note of layout.annotations) if (note.yref === "paper") note.y = moved(note.y);
      for (const { colorbar: bar } of data)
        if (bar?.y) Object.assign(bar, { y: moved(bar.y), len: ((bar.len ?? 1) * old) / (old + apart) });
    }
    const taller = height + more + apart;
    layout.title = { ...title, text };
    if (title.y !== undefined) layout.title.y = 1 - ((1 - title.y) * height) / taller;
    layout.margin = { ...margin, t: (margin.t ?? 100) + more };
    layout.height = taller;
  }

  // Rows of squares are no higher than their squares, which the width may have made smaller.
  function closeUp(data, layout, width) {
    const { height = 450, margin = {} } = layout, old = height - (margin.t ?? 100) - (margin.b ?? 80);
    const squares = axes(layout, "y").map((key) => layout[key]).filter((y) => y.scaleanchor), tops = new Set();
    const rows = squares.map(({ domain = [0, 1] }) => domain).filter(([, top]) => !tops.has(top) && tops.add(top));
    const spans = axes(layout, "x").map((key) => layout[key].domain ?? [0, 1]).map(([left, right]) => right - left);
    const side = Math.max(...spans) * roomOf(data, layout, width), bar = layout.coloraxis?.colorbar;
    const less = rows.length && (rows[0][1] - rows[0][0]) * old - side;
    if (!(less > 0)) return;
    const below = (y) => rows.reduce((sum, [low, top]) => sum + Math.min(1, Math.max(0, (y - low) / (top - low))), 0);
    const moved = (y) => (y * old - less * below(y)) / (old - less * rows.length);
    for (const y of squares) y.domain = (y.domain ?? [0, 1]).map(moved);
    for (const note of layout.annotations ?? []) if (note.yref === "paper") note.y = moved(note.y);
    if (bar?.lenmode === "pixels") bar.len = Math.min(bar.len, side);
    layout.height = height - less * rows.length;
    if (layout.title?.y !== undefined) layout.title.y = 1 - ((1 - layout.title.y) * height) / layout.height;
  }

  // Panels that lie beside each other come below each other, for a place as narrow as a phone.
  function stack(data, layout, width) {
    const PANEL = 230, BETWEEN = 88, ROW = 24, of = (axis) => axis.domain ?? [0, 1];
    const { height: whole = 450, margin = {} } = layout, was = whole - (margin.t ?? 100) - (margin.b ?? 80);
    const drawn = new Set([
      ...data.map(({ xaxis }) => xaxis ?? "x"),
      ...[...layout.shapes ?? [], ...layout.annotations ?? []].map(({ xref }) => xref?.split(" ")[0]),
    ]);
    let left = 56; // room for the names of rows
    const order = axes(layout, "x").filter((key) => drawn.has(`x${key.slice(5)}`)).map((key) => {
      const x = layout[key], y = layout[`yaxis${(x.anchor || "y").slice(1)}`], [bottom, top] = of(y);
      const named = data.filter(({ yaxis }) => (yaxis ?? "y") === (x.anchor || "y")).flatMap((trace) => trace.y ?? []);
      const rows = [...new Set(named)].filter((name) => typeof name === "string");
      if (!y.ticktext && rows.length) Object.assign(y, { tickvals: rows, ticktext: rows });
      if (y.ticktext) {
        y.ticktext = y.ticktext.map((text) => wrapped(text, 0.33 * width, 12));
        left = Math.max(left, 14 + widest(y.ticktext, 12) + (y.title?.text ? 24 : 0));
      }
      // Rows with names keep their height, and squares are as high as wide.
      const [wide, high] = [x, y].map(({ range: [a, b] = [0, 1] }) => Math.abs(b - a));
      const tall = y.scaleanchor ? (width - 66) * (high / wide) : Math.max(PANEL, y.ticktext ? (top - bottom) * was : 0);
      return { x, y, tall, id: `x${key.slice(5)}`, left: of(x)[0], right: of(x)[1], bottom, top };
    }).sort((a, b) => b.bottom - a.bottom || a.left - b.left); // a bar above one lowers its top
    const room = width - left - 10;
    const titles = (layout.annotations ?? []).filter(({ xref, yref }) => xref === "paper" && yref === "paper").map((note) => {
      const off = (panel) => (panel.left <= note.x && note.x <= panel.right ? Math.abs(note.y - panel.top) : 9);
      note.text = wrapped(note.text, room, 13);
      return [note, order.reduce((a, b) => (off(b) < off(a) ? b : a))]; // it goes with the nearest panel below it
    });
    for (const panel of order) { // lines beyond the first, of the panel's title and of its axis
      const { x } = panel, heads = titles.filter(([, of]) => of === panel).map(([{ text }]) => lineCount(text));
      x.title = { ...x.title, text: wrapped(x.title?.text ?? "", room, 13) };
      panel.head = 17 * (Math.max(1, ...heads) - 1);
      panel.foot = 17 * (lineCount(x.title.text) - 1) + (x.type === "multicategory" ? 45 : 0);
    }
    let inner = 0;
    order.forEach((panel, row) => {
      if (row) inner += order[row - 1].foot + BETWEEN + panel.head;
      panel.from = inner;
      inner += panel.tall;
    });
    for (const panel of order) panel.high = 1 - panel.from / inner;
    for (const [note, { high }] of titles) Object.assign(note, { x: 0.5, y: high, font: { ...note.font, size: 13 } });
    for (const { x, y, id, high, tall } of order) {
      const low = Math.max(0, high - tall / inner);
      let top = high;
      for (const { type, xaxis, colorbar } of data) {
        if (type !== "heatmap" || (xaxis ?? "x") !== id || !colorbar) continue;
        const flat = colorbar.orientation === "h";
        Object.assign(colorbar, { x: flat ? 0.5 : 1, y: high, yanchor: "top", len: flat ? 1 : high - low });
        if (flat) top -= 42 / inner;
      }
      Object.assign(x, { domain: [0, 1] });
      Object.assign(y, { domain: [low, top], showticklabels: true }); // those beside it are gone
      if (x.type === "log" && x.dtick === 1 && x.range && Math.abs(x.range[1] - x.range[0]) > 6) x.dtick = 2;
    }
    const listed = inLegend(data);
    for (const trace of listed) trace.name = wrapped(trace.name ?? "", room - 24 - (layout.legend?.itemwidth ?? 30), 12);
    const below = listed.reduce((sum, { name }) => sum + ROW + 16 * (lineCount(name) - 1), 76 + order.at(-1).foot);
    const title = wrapped(layout.title?.text ?? "", width - 20, 15);
    const above = 21 * lineCount(title) + (layout.annotations ? 34 : 24) + order[0].head;
    const bar = layout.coloraxis?.colorbar, flat = { orientation: "h", len: 1, lenmode: "fraction" };
    if (bar) Object.assign(bar, flat, { x: 0.5, y: 0, yref: "container", yanchor: "bottom" });
    const height = above + inner + below;
    Object.assign(layout, {
      height,
      title: { ...layout.title, text: title, y: 1 - 14 / height, yanchor: "top", font: { size: 15 } },
      font: { ...layout.font, size: 12 },
      margin: { l: left, r: 10, t: above, b: below },
      legend: {
        ...layout.legend, orientation: "v", x: 0, xanchor: "left", yref: "container", y: 0.01, yanchor: "bottom",
      },
    });
  }

  // Plotly's JSON in the colours of the page; figures of panels (layout.meta.stack) follow its width.
  function arranged(plot, figure) {
    const dark = condnum.dark(), { printing } = page, width = printing ? PAPER : plot.clientWidth;
    const { data, layout } = structuredClone(figure), [ink, grid, paper] = LOOKS[dark ? "dark" : "light"];
    const axis = { gridcolor: grid, linecolor: grid, zerolinecolor: grid, automargin: true };
    const look = { paper_bgcolor: paper, plot_bgcolor: paper, font: { color: ink, family: FONT } };
    layout.template = { layout: { ...look, xaxis: axis, yaxis: axis, hoverlabel: { align: "left" } } };
    layout.autosize = !layout.width;
    layout.uirevision ??= "kept"; // the reader's zoom and hidden lines stay
    for (const trace of data)
      for (const part of [trace.line, trace.marker])
        if (dark && BLACK.has(String(part?.color).toLowerCase())) part.color = ink;
    if (printing) Object.assign(layout, { width: Math.min(layout.width ?? PAPER, PAPER), autosize: false });
    const columns = new Set(axes(layout, "x").map((key) => layout[key].domain?.[0] ?? 0)).size;
    const narrow = width < Math.max(LEAST, COLUMN * columns) || roomOf(data, layout, width) < SLIM * columns;
    if (layout.meta?.stack && narrow && columns) stack(data, layout, width);
    else if (width) {
      closeUp(data, layout, layout.width ?? width);
      wrapTitles(data, layout, layout.width ?? width);
    }
    return { data, layout, narrow };
  }

  // All of a figure but its points and the words of its title, and the points of a trace.
  const POINTS = ["x", "y", "z", "text", "customdata", "hovertemplate"];
  const frameOf = (data, { title = {}, ...layout }) => JSON.stringify([
    data.map((trace) => ({ ...trace, ...Object.fromEntries(POINTS.map((key) => [key, key in trace])) })),
    data.map(({ z }) => (Array.isArray(z) ? z.map((row) => row.length) : z?.shape)), // plotly.py's base64 has a shape
    layout, { ...title, text: lineCount(title.text) },
  ]);
  const pointsOf = (trace) => Object.fromEntries(POINTS.filter((key) => key in trace).map((key) => [key, trace[key]]));

  condnum.paint = (plot, figure) => {
    const { data, layout, narrow } = arranged(plot, figure), { printing } = page;
    clearTimeout(plot.rest);
    plot.frame = frameOf(data, layout);
    return Plotly.react(plot, data, layout, {
      responsive: !printing, displaylogo: false, showSendToCloud: false, displayModeBar: narrow ? false : "hover",
      modeBarButtonsToRemove: ["zoomIn2d", "zoomOut2d", "autoScale2d", "select2d", "lasso2d"],
    });
  };

  // Draws new points with Plotly's modules of traces, without all else. Returns whether nothing else has changed.
  function move(plot, { data, layout }) {
    if (plot.frame !== frameOf(data, layout)) return false;
    const { _fullData: full, _fullLayout: whole, calcdata } = plot, modules = new Set(full.map((one) => one._module));
    const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
    const moved = data.map((trace, i) => [pointsOf(trace), plot.data[i], full[i], i])
      .filter(([points, before]) => !same(points, pointsOf(before)));
    const fixed = ([points, before, one]) => one.visible && ["x", "y"].every((letter) => { // by its axes
      const { autorange, type } = whole[one[`${letter}axis`].replace(letter, `${letter}axis`)], values = points[letter];
      return same(values, before[letter]) || (values.length && !autorange && /^(linear|log)$/.test(type));
    });
    if (!moved.every(fixed)) return false;
    for (const [points, before, one, i] of moved) {
      Object.assign(before, points);
      Object.assign(one, points);
      if (!points.z) one._length = Math.min(...[points.x, points.y].flatMap((values) => values?.length ?? []));
      if (one.visible !== true) continue; // hidden in the legend
      calcdata[i] = one._module.calc(plot, one);
      Object.assign(calcdata[i][0], { t: calcdata[i][0].t ?? {}, trace: one });
    }
    for (const { crossTraceCalc } of modules)
      for (const panel of Object.values(whole._plots)) crossTraceCalc?.(plot, panel);
    for (const { plot: draw } of whole._basePlotModules) draw(plot);
    for (const { style } of modules) style?.(plot);
    const words = layout.title?.text?.split("<br>") ?? [];
    if (!/[<&$]/.test(words)) // a title with markup is drawn at rest
      for (const [i, line] of plot.querySelectorAll(words.length > 1 ? ".gtitle .line" : ".gtitle").entries())
        line.textContent = words[i];
    plot.layout.title = layout.title;
    return true;
  }

  // Paints a figure that others may follow at once, as while a slider moves. Plotly.react spends nearly all of its time
  // on axes, legend and margins; where these stay, it comes when no figure has followed for `REST` ms.
  const REST = 150;
  condnum.follow = (plot, figure) => {
    let moved = false;
    try { moved = move(plot, arranged(plot, figure)); } catch { /* a Plotly with other internals */ }
    if (!moved) return condnum.paint(plot, figure);
    clearTimeout(plot.rest);
    plot.rest = setTimeout(() => plot.isConnected && condnum.paint(plot, figure), REST);
    return undefined;
  };
}
