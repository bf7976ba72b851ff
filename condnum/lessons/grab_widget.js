// Grab the vectors where a kernel has the state: both follow each other.
export default {
  render({ model, el }) {
    const names = ["theta", "benign", "harmful"];
    const place = el.appendChild(document.createElement("div"));
    const state = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
    let sent = JSON.stringify(state());
    const explorer = condnum.grab(place, state(), {
      changed(moved) {
        sent = JSON.stringify(moved);
        for (const name of names) model.set(name, moved[name]);
        model.save_changes();
      },
    });
    const follow = () => { if (JSON.stringify(state()) !== sent) explorer.set(state()); };
    for (const name of names) model.on(`change:${name}`, follow);
    return () => { for (const name of names) model.off(`change:${name}`, follow); };
  },
};
