// Figures in a page: plotly's JSON in the colours and the width of the page.
const condnum = {};
{
  const FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif";
  const LOOKS = { // ink, grid, paper
    light: ["#2a3442", "#e3e8ef", "#ffffff"],
    dark: ["#e3e8ef", "#323c4a", "#14181e"],
  };
  const BLACK = new Set(["#000000", "#222222", "black"]); // drawn in the ink of the page
  const NARROW = 640; // pixels of a figure's place below which panels lie below each other

  condnum.dark = () => {
    const { jpThemeLight, theme } = document.body.dataset; // JupyterLab's, the site's
    if (jpThemeLight) return jpThemeLight === "false";
    return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  };
  condnum.onTheme = (redraw) => {
    const watch = new MutationObserver(redraw), media = matchMedia("(prefers-color-scheme: dark)");
    watch.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-theme"] });
    media.addEventListener("change", redraw);
    return () => { watch.disconnect(); media.removeEventListener("change", redraw); };
  };

  const axes = (layout, letter) => Object.keys(layout).filter((key) => key.match(`^${letter}axis\\d*$`));
  const wrapped = (text, width) => text.split("<br>").map((line) => {
    const lines = [""];
    for (const word of line.split(/\s+(?![^<]*>)/)) { // a tag is not broken, and does not count
      const longer = `${lines.at(-1)} ${word}`.trim(), most = line.startsWith("<sup>") ? 1.45 * width : width;
      if (longer.replace(/<[^>]*>/g, "").length > most) lines.push(word); else lines[lines.length - 1] = longer;
    }
    return lines.join("<br>");
  }).join("<br>");

  // Panels that lie beside each other come below each other, for a place as narrow as a phone.
  function stack(data, layout) {
    const PANEL = 230, BETWEEN = 88, ROW = 24, of = (axis) => axis.domain ?? [0, 1];
    const order = axes(layout, "x").map((key) => {
      const x = layout[key], y = layout[`yaxis${(x.anchor || "y").slice(1)}`];
      return { x, y, id: `x${key.slice(5)}`, left: of(x)[0], right: of(x)[1], top: of(y)[1] };
    }).sort((a, b) => a.left - b.left || b.top - a.top);
    const inner = order.length * (PANEL + BETWEEN) - BETWEEN;
    order.forEach((panel, number) => { panel.high = 1 - (number * (PANEL + BETWEEN)) / inner; });
    for (const note of layout.annotations ?? []) { // a panel's title goes with the nearest one below it
      if (note.xref !== "paper" || note.yref !== "paper") continue;
      const off = (panel) => (panel.left <= note.x && note.x <= panel.right ? Math.abs(note.y - panel.top) : 9);
      const { high } = order.reduce((a, b) => (off(b) < off(a) ? b : a));
      Object.assign(note, { x: 0.5, y: high, font: { ...note.font, size: 13 } });
    }
    for (const { x, y, id, high } of order) {
      const low = Math.max(0, high - PANEL / inner);
      let top = high;
      for (const { type, xaxis, colorbar } of data) {
        if (type !== "heatmap" || (xaxis ?? "x") !== id || !colorbar) continue;
        const flat = colorbar.orientation === "h";
        Object.assign(colorbar, { x: flat ? 0.5 : 1, y: high, yanchor: "top", len: flat ? 1 : high - low });
        if (flat) top -= 42 / inner;
      }
      Object.assign(x, { domain: [0, 1] });
      Object.assign(y, { domain: [low, top] });
      x.title = { ...x.title, text: wrapped(x.title?.text ?? "", 38) };
      if (x.type === "log" && x.dtick === 1 && x.range && Math.abs(x.range[1] - x.range[0]) > 6) x.dtick = 2;
    }
    const listed = data.filter((trace) => (trace.type ?? "scatter") === "scatter" && trace.showlegend !== false);
    const below = ROW * listed.length + 76;
    const title = wrapped(layout.title?.text ?? "", 40), above = 21 * title.split("<br>").length + 34;
    const height = above + inner + below;
    Object.assign(layout, {
      height,
      title: { ...layout.title, text: title, y: 1 - 14 / height, yanchor: "top", font: { size: 15 } },
      font: { ...layout.font, size: 12 },
      margin: { l: 56, r: 10, t: above, b: below },
      legend: {
        ...layout.legend, orientation: "v", x: 0, xanchor: "left", yref: "container", y: 0.01, yanchor: "bottom",
      },
    });
  }

  // Draws plotly's JSON in the colours of the page; figures of panels (layout.meta.stack) follow its width.
  condnum.paint = (plot, figure, { dark = condnum.dark(), width = plot.clientWidth, printing = false } = {}) => {
    const { data, layout } = structuredClone(figure), [ink, grid, paper] = LOOKS[dark ? "dark" : "light"];
    const axis = { gridcolor: grid, linecolor: grid, zerolinecolor: grid, automargin: true };
    const look = { paper_bgcolor: paper, plot_bgcolor: paper, font: { color: ink, family: FONT } };
    layout.template = { layout: { ...look, xaxis: axis, yaxis: axis, hoverlabel: { align: "left" } } };
    layout.autosize = !layout.width;
    layout.uirevision ??= "kept"; // the reader's zoom and hidden lines stay
    for (const trace of data)
      for (const part of [trace.line, trace.marker])
        if (dark && BLACK.has(String(part?.color).toLowerCase())) part.color = ink;
    if (dark) for (const menu of layout.updatemenus ?? []) // plotly draws the active button almost white
      Object.assign(menu, { bgcolor: "#8fa0b3", font: { ...menu.font, color: "#14181e" } });
    if (layout.meta?.stack && width < NARROW && axes(layout, "x").length) stack(data, layout);
    if (printing) Object.assign(layout, { width: Math.min(layout.width ?? 940, 940), autosize: false });
    return Plotly.react(plot, data, layout, { responsive: !printing, displaylogo: false, showSendToCloud: false });
  };
}
