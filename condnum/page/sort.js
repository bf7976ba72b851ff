// Sorts the tables before it on a click on a heading, and shows the rows that its dropdowns choose.
{
  const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const key = (cell) => {
    const plain = cell.textContent.trim().replace(/[,\u00a0]/g, "").replace("−", "-").replace("∞", "Infinity")
      .replace(/·10([⁻⁰¹²³⁴-⁹]+)/, (_, power) => `e${[...power].map((one) => one === "⁻" ? "-" : digits.indexOf(one)).join("")}`);
    const number = parseFloat(plain.replace(/^[<>≤≥]\s*/, ""));
    return Number.isNaN(number) ? plain : number;
  };
  const order = (a, b) => typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a < b ? -1 : a > b ? 1 : 0;
  for (const table of document.currentScript.parentElement.querySelectorAll("table.sortable:not([data-ready])")) {
    table.dataset.ready = "";
    const rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells], chosen = [];
    const show = () => rows.forEach((row) => { row.hidden = chosen.some(([place, select]) => select.value && row.cells[place].textContent !== select.value); });
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      button.style.cssText = "all: unset; cursor: pointer;";
      button.title = "Sort";
      head.append(button);
      button.onclick = () => {
        const sign = head.ariaSort === "descending" ? 1 : -1;
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.ariaSort = sign > 0 ? "ascending" : "descending";
        const known = (row) => key(row.cells[place]) !== "—";
        const sorted = rows.filter(known).sort((a, b) => sign * order(key(a.cells[place]), key(b.cells[place])));
        table.tBodies[0].append(...sorted, ...rows.filter((row) => !known(row)));
      };
      if (!JSON.parse(table.dataset.filters || "[]").includes(place)) return;
      const select = document.createElement("select"), label = document.createElement("label");
      const values = [...new Set(rows.map((row) => row.cells[place].textContent))];
      select.append(...values.map((value) => new Option(value, value)), new Option("all", ""));
      if (place) select.value = ""; // the first column chooses, the others narrow
      select.onchange = show;
      label.append(`${head.textContent} `, select, " ");
      table.before(label);
      chosen.push([place, select]);
    });
    show();
  }
}
