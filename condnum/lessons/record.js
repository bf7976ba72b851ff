// Plays recordings of explorers, `{spec, states}` as record.py packs them, in the places of a page.
condnum.decode = async ({ spec, states }) => {
  const packed = Uint8Array.from(atob(states), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { parts, rows } = await new Response(stream).json();
  const moving = spec.controls.filter(({ values }) => values.length > 1), fixed = spec.controls.filter(({ live }) => live);
  const apart = ({ log, values }, one, other) => {
    if (one === other) return 0;
    if (typeof one !== "number") return 1;
    return Math.abs((log ? Math.log10 : Number)(one) - (log ? Math.log10 : Number)(other));
  };
  const nearest = (state) => Object.fromEntries(spec.controls.map((control) => [
    control.name, control.values.reduce((best, one) => (
      apart(control, one, state[control.name]) < apart(control, best, state[control.name]) ? one : best)),
  ]));
  const ask = async (state) => {
    const at = nearest(state);
    const row = spec.controls.reduce((sum, { name, values }) => sum * values.length + values.indexOf(at[name]), 0);
    const [words, frame, ...numbers] = rows[row], [sentence, table, error] = parts[words];
    if (frame === undefined) return { state: at, sentence, table, error, figure: null };
    const { data, layout } = structuredClone(parts[frame]);
    data.forEach((trace, i) => Object.assign(trace, structuredClone(parts[numbers[i]])));
    return { state: at, sentence, table, error, figure: { data, layout } };
  };
  const more = fixed.length ? `, also of ${fixed.map(({ label }) => label).join(", ")}` : "";
  const lacks = `This page has recorded ${rows.length} states. In JupyterLab, this notebook runs your code and takes all values${more}.`;
  const presets = spec.presets.filter(({ settings }) => (
    fixed.every(({ name, values: [value] }) => (settings[name] ?? value) === value)));
  return { spec: { ...spec, presets, controls: moving }, nearest, ask, lacks };
};
{
  const places = [...document.querySelectorAll(".condnum-recorded")], unopened = new Set(places);
  const open = async (place) => {
    if (!unopened.delete(place)) return;
    const recording = JSON.parse(place.querySelector("script").textContent);
    place.replaceChildren();
    await condnum.play(place, recording, places.indexOf(place));
  };
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) open(target);
  }, { rootMargin: "600px" });
  places.forEach((place) => near.observe(place));
  const inTurn = async ([first, ...others]) => { // far below too: a page may be printed before it is scrolled
    if (!first) return;
    try { await open(first); } finally { setTimeout(inTurn, 0, others); }
  };
  inTurn(places);
}
