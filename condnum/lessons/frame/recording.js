// Recordings of explorers: the figure and sentence of each state of a lattice, as recording.py packs them.
condnum.recordings = {}; // by the names of explorers; their files fill them in
condnum.decode = async (text) => {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { spec, blocks, leaves, places } = await new Response(stream).json();
  const [free, held] = [false, true].map((kind) => spec.controls.filter(({ advanced }) => advanced === kind));
  const apart = ({ log, values }, one, other) => {
    if (one === other) return 0;
    if (typeof one !== "number") return 1;
    const [a, b, low, high] = [one, other, values[0], values.at(-1)].map(log ? Math.log10 : Number);
    return Math.abs((a - b) / (high - low)); // values may descend
  };
  const least = (list, cost) => list.reduce((best, one) => (cost(one) < cost(best) ? one : best));
  // Of the recorded states, the one for what a reader chose; advanced controls go together as in a preset.
  const nearest = (state, changed = {}) => {
    const { ...at } = least(blocks, (block) => held.reduce((sum, control) => (
      sum + apart(control, block[control.name], state[control.name]) * (control.name in changed ? 1000 : 1)), 0));
    for (const control of free)
      at[control.name] = least(control.values, (value) => apart(control, value, state[control.name]));
    return at;
  };
  const ask = async (state) => {
    const at = nearest(state), payload = { state: at };
    const block = blocks.findIndex((one) => held.every(({ name }) => one[name] === at[name]));
    const row = free.reduce((sum, { name, values }) => sum * values.length + values.indexOf(at[name]), block);
    for (const [path, numbers] of places) {
      if (!numbers[row]) continue; // another state has it
      let place = payload;
      path.slice(0, -1).forEach((key, depth) => {
        place = place[key] ??= typeof path[depth + 1] === "number" ? [] : {};
      });
      place[path.at(-1)] = structuredClone(leaves[numbers[row] - 1]);
    }
    return payload;
  };
  return { spec, nearest, ask };
};
