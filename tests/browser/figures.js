// What is wrong with a page as it is shown now: texts of figures upon each other or hard to see, what is wider than
// its box, raw TeX, outputs as a program prints them, controls that a text names and the page lacks. Returns one
// sentence for each; evaluate as a function.
() => {
  const found = new Set(), SLACK = 2, PHONE = 640, LEAST_CONTRAST = 3; // WCAG's least, of large text
  const OUTPUTS = ".cell_output, .output_area, .jp-OutputArea-output, .condnum-explorer";
  const RAW = {
    "raw TeX": /\$|\\[a-zA-Z]{2,}/,
    "raw Markdown": /\*\*[^\s*][^*]*\*\*|(^|\s)#{2,} |\]\(/,
  };
  const NAMES = "h1, h2, h3, h4, th, label, option, button, summary, .js-plotly-plot";
  const OF_NAMES = { ...RAW, "a raw subscript": /\b[KDHRL]_(P|H|ill|well)\b|[σκθγ]_\w/ };
  const PRINTED = {
    "a warning": /\w*Warning:.*/,
    "an absolute path": /(?<![\w.:/~-])\/(home|root|tmp|usr|opt|var|work|mnt|Users|private)\/\S*|\b[A-Z]:\\\w\S*/,
    // 1e-15 has no shorter form
    "a number as Python prints it": /\d(\.\d+)?e(\+0[0-6]|-0[1-4])\b|\bnp\.\w+\(.*|\bnan\b/,
  };
  const shown = (box) => box.width > 1 && box.height > 1;
  const words = (element) => element.textContent.replace(/[\s\u200b¶]+/g, " ").trim().slice(0, 40);
  const headings = [...document.querySelectorAll("h1, h2, h3")].filter((heading) => heading.checkVisibility());
  const say = (element, text) => { // with the heading above it
    const before = (heading) => heading.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
    const above = headings.findLast(before);
    found.add(above ? `under '${words(above)}': ${text}` : text);
  };
  const rgb = (color) => color.match(/[\d.]+/g)?.slice(0, 3).map(Number);
  const luminance = (color) => rgb(color).map((part) => part / 255)
    .map((part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  const scrolls = (box) => innerWidth < PHONE && box !== document.body // where a finger does it
    && (getComputedStyle(box).overflowX === "auto" || scrolls(box.parentElement));

  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const frame = plot.getBoundingClientRect();
    if (!shown(frame) || !plot.checkVisibility()) continue;
    const title = plot.querySelector(".gtitle"), name = `figure '${title ? words(title) : ""}'`;
    const told = [], tell = (text) => told.push(text);
    const lines = title ? [...title.querySelectorAll(".line")] : [];
    const places = ".gtitle, .xtitle, .ytitle, [class*='xtitle'], [class*='ytitle'], .annotation-text, .legend, "
      + ".xtick text, .ytick text, [class*='tick'] text, .cbaxis text, [class*='cb'] .cbtitle text, "
      + ".updatemenu-button, .modebar-group";
    const boxes = [...new Set(plot.querySelectorAll(places))].flatMap((element) => {
      const box = element.getBoundingClientRect();
      return shown(box) && getComputedStyle(element).opacity !== "0" ? [[element, box]] : [];
    });
    const meet = (box, q) => Math.min(box.right, q.right) - Math.max(box.left, q.left) > SLACK
      && Math.min(box.bottom, q.bottom) - Math.max(box.top, q.top) > SLACK;
    const upon = (one, other) => { // a title's lines are of different lengths
      const parts = (element) => (element === title && lines.length ? lines : [element]);
      return parts(one).some((a) => parts(other)
        .some((b) => meet(a.getBoundingClientRect(), b.getBoundingClientRect())));
    };
    const bar = (element) => element.matches(".modebar-group");
    const label = (element) => (bar(element) ? "the row of buttons" : `'${words(element)}'`);
    boxes.forEach(([element, box], i) => {
      if (box.left < frame.left - SLACK || box.right > frame.right + SLACK
        || box.top < frame.top - SLACK || box.bottom > frame.bottom + SLACK) tell(`${label(element)} leaves the figure`);
      for (const [other, q] of boxes.slice(i + 1)) {
        if (element.contains(other) || other.contains(element) || (bar(element) && bar(other))) continue;
        if (meet(box, q) && upon(element, other)) tell(`${label(element)} lies upon ${label(other)}`);
      }
    });
    const { backgroundColor: paper } = getComputedStyle(plot.querySelector(".main-svg"));
    for (const text of plot.querySelectorAll(".gtitle, .xtitle, .ytitle, .xtick text, .ytick text, .legendtext")) {
      const { fill } = getComputedStyle(text);
      if (rgb(fill) && contrast(fill, paper) < LEAST_CONTRAST) tell(`'${words(text)}' is hard to see, ${fill} on ${paper}`);
    }
    for (const [i, text] of told.entries()) if (i < 4) say(plot, `${name}: ${text}`);
    if (told.length > 4) say(plot, `${name}: ${told.length - 4} more of this kind`);
    const box = plot.closest(".figure, .output_area, .cell_output, .jp-OutputArea-output, .condnum-place");
    if (box && frame.width > box.clientWidth + SLACK && !scrolls(box))
      say(plot, `${name}: ${Math.round(frame.width)} px wide in a box of ${box.clientWidth} px`);
  }

  for (const table of document.querySelectorAll("table")) {
    const box = table.parentElement, [wide, room] = [table.getBoundingClientRect().width, box.clientWidth];
    if (table.checkVisibility() && wide > room + SLACK && !scrolls(box))
      say(table, `table '${words(table)}': ${Math.round(wide)} px wide in a box of ${room} px`);
  }
  const { scrollWidth } = document.documentElement;
  if (scrollWidth > innerWidth) say(document.body, `the page is ${scrollWidth} px wide in a window of ${innerWidth} px`);

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const NOT_PROSE = "pre, code, script, style, textarea, annotation, mjx-assistive-mml, .cm-editor, .condnum-tools";
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode, code = /=\s*$/.test(data); // a name that is to be given a value
    if (!data.trim() || !parentElement.checkVisibility()) continue;
    if (!parentElement.closest(NOT_PROSE))
      for (const [kind, pattern] of Object.entries(parentElement.closest(NAMES) && !code ? OF_NAMES : RAW)) {
        const raw = data.match(pattern);
        if (raw) say(parentElement, `${kind}: '${data.slice(Math.max(0, raw.index - 20), raw.index + 40).trim()}'`);
      }
    if (parentElement.closest(OUTPUTS) && !parentElement.closest("script, style, annotation")) printed(parentElement, data);
  }
  for (const field of document.querySelectorAll("input[type=text]"))
    if (field.closest(OUTPUTS)) printed(field, field.value);
  function printed(element, text) {
    for (const [kind, pattern] of Object.entries(PRINTED)) {
      const match = text.match(pattern);
      if (match) say(element, `${kind} in an output: '${match[0].slice(0, 80)}'`);
    }
    for (const [number] of text.matchAll(/(?<![\w.,/-])\d[\d,]*(\.\d+)?(?![\w/-]|\.\d)/g))
      if (number.replace(/[.,]/g, "").replace(/^0+/, "").length > 8)
        say(element, `more than eight digits in an output: '${number}'`);
  }

  // Emphasized words of a paragraph or list that begins with "Try" name controls, or options, of an explorer under
  // the same first heading; where a kernel computes, also what needs all controls.
  const plain = (text) => text.normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
  const chapters = headings.filter((heading) => heading.matches("h1"));
  const chapter = (element) => chapters
    .findLast((heading) => heading.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING);
  const controls = [...document.querySelectorAll(".condnum-explorer :is(label, option, button, summary, [aria-label])")];
  const trial = document.querySelector("#jupyter-config-data") ? /^\s*(Try|With all controls)\b/ : /^\s*Try\b/;
  const begins = (element) => trial.test(element?.textContent ?? "");
  for (const name of document.querySelectorAll(":is(p, li) :is(strong, b, em, i)")) {
    const list = name.closest("ul, ol");
    if (!name.checkVisibility() || begins(name)) continue;
    if (!begins(name.closest("p, li")) && !(list && begins(list.previousElementSibling))) continue;
    const labels = controls.filter((control) => chapter(control) === chapter(name))
      .map((control) => plain(control.getAttribute("aria-label") ?? control.textContent));
    for (const part of name.textContent.split(":")) // "label: option"
      if (!labels.some((label) => label.includes(plain(part))))
        say(name, `no control '${part.trim()}', which the text names`);
  }
  return [...found];
}
