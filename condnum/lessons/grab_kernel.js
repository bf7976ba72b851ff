// Grab the vectors where a kernel has the state: both follow each other.
export default {
  render({ model, el }) {
    el.classList.add("condnum-grab-live");
    const names = ["theta", "benign", "harmful"];
    const place = el.appendChild(document.createElement("div"));
    const asked = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
    let told = JSON.stringify(asked());
    const explorer = condnum.grab(place, asked(), {
      changed(state) {
        told = JSON.stringify(state);
        for (const name of names) model.set(name, state[name]);
        model.save_changes();
      },
    });
    const follow = () => { if (JSON.stringify(asked()) !== told) explorer.set(asked()); };
    for (const name of names) model.on(`change:${name}`, follow);
    return () => { for (const name of names) model.off(`change:${name}`, follow); };
  },
};
