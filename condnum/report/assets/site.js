// Draws the figures in the reader's colours, copies commands, folds the contents on small screens.
(function () {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PAPER = { light: "#ffffff", dark: "#14181e" }; // --figure of site.css
  const PRINTED = 940; // pixels that fit on a sheet at the zoom that site.css prints figures with
  const BLACK = { "#000000": "#e3e8ef", "#222222": "#e3e8ef", black: "#e3e8ef" };
  const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false };
  let printing = false;

  function look() {
    return dark.matches && !printing ? "dark" : "light";
  }

  // Lines and marks that are black on white become light on dark; text on coloured cells stays.
  function recoloured(trace) {
    if (look() === "light") return trace;
    for (const part of ["line", "marker"]) {
      const color = trace[part] && trace[part].color;
      if (typeof color === "string" && BLACK[color.toLowerCase()])
        trace[part] = Object.assign({}, trace[part], { color: BLACK[color.toLowerCase()] });
    }
    return trace;
  }

  function draw(plot) {
    const source = document.querySelector('script[data-for="' + plot.id + '"]');
    const figure = JSON.parse(source.textContent);
    const layout = figure.layout;
    layout.template = window.condnumTemplates[look()];
    layout.paper_bgcolor = layout.plot_bgcolor = PAPER[look()];
    layout.autosize = !layout.width;
    if (look() === "dark") (layout.updatemenus || []).forEach(function (menu) {
      menu.bgcolor = "#8fa0b3"; // plotly draws the active button almost white: dark words are read on both
      menu.font = Object.assign({}, menu.font, { color: "#14181e" });
    });
    if (printing) {
      const width = layout.width || PRINTED;
      layout.width = Math.min(width, PRINTED);
      layout.autosize = false;
    }
    return window.Plotly.react(plot, figure.data.map(recoloured), layout, CONFIG);
  }

  function drawAll() {
    if (window.Plotly) document.querySelectorAll(".plot-frame").forEach(draw);
  }

  // One figure a frame, so that the page answers while they are drawn.
  function drawInTurn(plots) {
    if (!plots.length) return;
    draw(plots[0]);
    window.setTimeout(function () { drawInTurn(plots.slice(1)); }, 0);
  }

  function print(started) {
    if (printing === started) return;
    printing = started;
    document.querySelectorAll("details.why").forEach(function (part) { part.open = started; });
    drawAll();
  }

  async function copy(button) {
    const text = button.dataset.text;
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch (error) {
      done = copySelected(text); // file:// has no clipboard in some browsers
    }
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    button.setAttribute("aria-live", "polite");
    if (!done) select(button.parentElement.querySelector("code"));
    window.setTimeout(function () { button.textContent = "Copy"; }, 2500);
  }

  function copySelected(text) {
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.appendChild(area);
    area.select();
    let done = false;
    try {
      done = document.execCommand("copy");
    } catch (error) {
      done = false;
    }
    area.remove();
    return done;
  }

  function select(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  document.addEventListener("click", function (event) {
    const button = event.target.closest("button.copy");
    if (button) copy(button);
    const entry = event.target.closest(".contents a");
    if (entry && !wide.matches) entry.closest("details").open = false;
  });

  const wide = window.matchMedia("(min-width: 1180px)");
  function foldContents() {
    document.querySelectorAll(".contents details").forEach(function (part) { part.open = wide.matches; });
  }

  foldContents();
  wide.addEventListener("change", foldContents);
  if (window.Plotly) drawInTurn(Array.from(document.querySelectorAll(".plot-frame")));
  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", function () { print(true); });
  window.addEventListener("afterprint", function () { print(false); });
  window.matchMedia("print").addEventListener("change", function (event) { print(event.matches); });
})();
