// What a reader cannot read on a page: texts of plotly figures that lie upon each other or leave their figure,
// tables wider than their box, and raw TeX. Returns one sentence for each; evaluate as a function.
() => {
  const found = [], SLACK = 2;
  const shown = (box) => box.width > 1 && box.height > 1;
  const words = (element) => element.textContent.trim().slice(0, 40);
  for (const [number, plot] of document.querySelectorAll(".js-plotly-plot").entries()) {
    const frame = plot.getBoundingClientRect();
    if (!shown(frame)) continue;
    const places = ".gtitle, .xtitle, .ytitle, [class*='xtitle'], [class*='ytitle'], .annotation-text, .legend, "
      + ".xtick text, .ytick text, [class*='tick'] text, .cbaxis text, [class*='cb'] .cbtitle text";
    const boxes = [...new Set(plot.querySelectorAll(places))].flatMap((element) => {
      const box = element.getBoundingClientRect();
      return shown(box) && getComputedStyle(element).opacity !== "0" ? [[element, box]] : [];
    });
    boxes.forEach(([element, box], i) => {
      if (box.left < frame.left - SLACK || box.right > frame.right + SLACK
        || box.top < frame.top - SLACK || box.bottom > frame.bottom + SLACK)
        found.push(`figure ${number}: '${words(element)}' leaves the figure`);
      for (const [other, q] of boxes.slice(i + 1)) {
        if (element.contains(other) || other.contains(element)) continue;
        if (Math.min(box.right, q.right) - Math.max(box.left, q.left) > SLACK
          && Math.min(box.bottom, q.bottom) - Math.max(box.top, q.top) > SLACK)
          found.push(`figure ${number}: '${words(element)}' lies upon '${words(other)}'`);
      }
    });
  }
  for (const table of document.querySelectorAll("table")) {
    const box = table.getBoundingClientRect(), room = table.parentElement.clientWidth;
    if (table.checkVisibility() && box.width > room + SLACK)
      found.push(`table '${words(table)}': ${Math.round(box.width)} px wide in a box of ${room} px`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (parentElement.closest("pre, code, script, style, textarea, annotation, .CodeMirror, .cm-editor")) continue;
    const tex = data.match(/\$[^$\n]*[\\^_{][^$\n]*\$|\\(operatorname|frac|sigma|kappa|theta|top|le|ge|text|mathbb|lambda|cdot)\b/);
    if (tex && parentElement.checkVisibility()) found.push(`raw TeX: '${tex[0].slice(0, 60)}'`);
  }
  return found;
}
