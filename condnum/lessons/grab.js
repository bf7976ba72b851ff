// Grab the vectors: one θ, two tasks, two dimensions. `condnum.grab(host, state, options)` draws into `host`.
//
// An ellipse is [a, b, degrees]: its half axes, and the direction of the first. Of a task it is the spread of
// the data, K = a²qqᵀ + b²ppᵀ; of θ it is the image of the circle, with the singular values a and b. V only
// turns the features, so θ = UΣUᵀ here: data, θ and H = θᵀKθ lie in one plane.
(() => {
  "use strict";
  const SHORTEST = 0.1, LONGEST = 1; // half axes: data up to κ = 100
  const LEFT = 1e-3; // share of the loss at which training ends
  const EXACT = 1e-12; // misalignment that is round-off of the angles
  const RISES = 1 + 1e-9; // as in Definition 3.1's verdict in Python
  const TASKS = ["benign", "harmful"], ELLIPSES = ["theta", ...TASKS];
  const START = { theta: [1, 0.3, 65], benign: [1, 0.2, 20], harmful: [0.5, 0.9, 20] };
  const PRESETS = [ // label, hint, state
    ["Aligned: Eq. 10 exact", "θ and both data share their axes", { ...START, theta: [1, 0.3, 20] }],
    ["45°: Eq. 10 fails", "the same ellipses, θ turned by 45°", START],
    ["Aligned, yet immunized", "K_P = diag(100, 1), K_H = diag(2, 1): the paper says that no θ can do this",
      { theta: [0.1, 1, 0], benign: [1, 0.1, 0], harmful: [1, 0.7071, 0] }],
    ["Nothing possible", "K_H = c·K_P: the same shape twice",
      { theta: [1, 0.4, 60], benign: [1, 0.3, 30], harmful: [0.6, 0.18, 30] }],
  ];
  const ACTIONS = [
    ["Best θ", "θ* = K_P^(-1/2) for these data: the benign ellipse with its axes exchanged",
      (state) => ({ theta: bestTheta(state) })],
    ["No θ", "the data as they are", () => ({ theta: [1, 1, 0] })],
  ];

  // ---- mathematics: 2×2 matrices in closed form ----
  const cos = (degrees) => Math.cos((degrees * Math.PI) / 180);
  const sin = (degrees) => Math.sin((degrees * Math.PI) / 180);
  const squaredRatio = ([a, b]) => Math.max(a / b, b / a) ** 2;

  // Steps of gradient descent with exact line search from the slowest start, where each step leaves the share
  // ((κ − 1)/(κ + 1))² of the loss.
  function stepsAtWorst(kappa) {
    const rate = (kappa - 1) / (kappa + 1);
    return rate > 0 ? Math.max(1, Math.ceil(Math.log(LEFT) / (2 * Math.log(rate)) - 1e-9)) : 1;
  }

  // What a probe of `data` sees through `theta`: ΣUᵀKUΣ, whose diagonal is Eq. 10.
  function probe(theta, data) {
    const [s, t] = theta, [A, B] = [data[0] ** 2, data[1] ** 2];
    const c = cos(data[2] - theta[2]), d = sin(data[2] - theta[2]);
    const predicted = [s * s * (A * c * c + B * d * d), t * t * (A * d * d + B * c * c)];
    const mixed = s * t * (A - B) * c * d, gap = predicted[0] - predicted[1];
    const largest = (predicted[0] + predicted[1] + Math.hypot(gap, 2 * mixed)) / 2;
    const smallest = (s * t * data[0] * data[1]) ** 2 / largest; // by the determinant: no cancellation
    const condition = Math.max(1, largest / smallest);
    const misalignment = (Math.SQRT2 * Math.abs(mixed)) / Math.hypot(largest, smallest);
    return {
      before: squaredRatio(data), condition, predicted, spectrum: [largest, smallest],
      predictedCondition: Math.max(...predicted) / Math.min(...predicted),
      misalignment, exact: misalignment <= EXACT,
      direction: theta[2] + (Math.atan2(2 * mixed, gap) * 90) / Math.PI, // of the long axis of H
      stepsBefore: stepsAtWorst(squaredRatio(data)), steps: stepsAtWorst(condition),
    };
  }

  // θ* = K_P^{-1/2}: the benign ellipse with its axes exchanged.
  const bestTheta = ({ benign }) => [benign[1], benign[0], benign[2]];

  function measure(state) {
    const [benign, harmful] = TASKS.map((task) => probe(state.theta, state[task]));
    const [harmfulRatio, benignRatio] = [harmful, benign].map((task) => task.condition / task.before);
    const best = probe(bestTheta(state), state.harmful);
    return {
      benign, harmful, harmfulRatio, benignRatio, rir: harmfulRatio / benignRatio,
      limit: (best.condition / best.before) * benign.before,
      success: harmfulRatio > RISES && !(benignRatio > RISES),
    };
  }

  // Where the ball is at time t, in steps, in the eigenbasis of H: it starts at (1/κ, 1).
  function ballAt(kappa, t) {
    const rate = (kappa - 1) / (kappa + 1), step = Math.floor(t), part = t - step;
    const at = (n) => [(rate ** n * (n % 2 ? -1 : 1)) / kappa, rate ** n];
    const [from, to] = [at(step), at(step + 1)];
    return [0, 1].map((i) => from[i] + part * (to[i] - from[i]));
  }

  // ---- the address ----
  const written = (state) => ELLIPSES.map((name) => `${name}=${state[name].join(",")}`).join("&");

  // Return the state that an address asks for, null if it asks for none; throw if it cannot be drawn.
  function read(address, state) {
    const asked = new URLSearchParams(address.replace(/^#/, "")), found = { ...state };
    const names = [...asked.keys()].filter((name) => ELLIPSES.includes(name));
    for (const name of names) {
      const values = asked.get(name).split(",").map((text) => (text.trim() ? Number(text) : NaN));
      const drawable = values.length === 3 && values.every(Number.isFinite)
        && values.slice(0, 2).every((length) => SHORTEST <= length && length <= LONGEST);
      if (!drawable) {
        throw new RangeError(`The address has ${name}=${asked.get(name)}: it takes two half axes from `
          + `${SHORTEST} to ${LONGEST} and an angle in degrees, such as ${name}=1,0.5,30.`);
      }
      found[name] = values;
    }
    return names.length ? found : null;
  }

  // ---- words ----
  const format = (maximumSignificantDigits) => new Intl.NumberFormat("en-US", { maximumSignificantDigits });
  const FORMATS = { 2: format(2), 3: format(3), 6: format(6) }; // made once, as that takes long
  const num = (value, digits = 3) => FORMATS[digits].format(value);

  // Whether both tasks have the same long axis: then the paper says that no θ immunizes.
  function aligned({ benign, harmful }) {
    const long = ([a, b, degrees]) => degrees + (a < b ? 90 : 0);
    const round = [benign, harmful].some(([a, b]) => a === b);
    return !round && Math.abs(sin(long(benign) - long(harmful))) < EXACT;
  }

  function eq10(task, theta) {
    const says = `Eq. 10: ${num(task.predictedCondition)}`;
    if (theta[0] === theta[1]) return [`${says}, or another: a circle has many axes`, ""];
    if (task.exact) return [`${says}, exact`, "good"];
    const share = task.condition / task.predictedCondition;
    return [share < 1.005 ? `${says}, a little too small` : `${says}, ${num(share, 2)}× too small`, "bad"];
  }

  // Definition 3.1: the harmful κ rises, the benign one does not; an invertible θ loses nothing.
  function verdict({ harmfulRatio, benignRatio, rir, limit, success }, state) {
    const moved = (ratio) => Math.abs(ratio - 1) <= RISES - 1 ? "as before"
      : ratio > 1 ? `× ${num(ratio)}` : `÷ ${num(1 / ratio)}`;
    const mark = (good) => (good ? "✔" : "✘");
    const both = `${mark(!(benignRatio > RISES))} benign κ ${moved(benignRatio)}, `
      + `${mark(harmfulRatio > RISES)} harmful κ ${moved(harmfulRatio)}.`;
    const none = limit <= RISES;
    const possible = none ? "Nothing is possible: both data have one shape, no θ tells them apart."
      : `Their quotient, RIR = ${num(rir)}, ${
        rir * RISES >= limit ? "is the largest possible" : `could reach ${num(limit)}`}.`;
    const remark = !aligned(state) ? ""
      : none ? " Here the paper is right that aligned tasks cannot be immunized."
      : success ? " The tasks are aligned: the paper's remark that no θ can do this does not hold." : "";
    const unknown = success ? " How many steps the actual probes take is not known without targets." : "";
    return [success ? "Immunized" : "Not immunized", both, possible + remark + unknown];
  }

  // ---- drawing ----
  const STYLE = `
.condnum-grab { color-scheme: light dark; container-type: inline-size; --ink: light-dark(#1f2a37, #e3e8ef);
  --soft: light-dark(#5b6675, #9aa6b5); --paper: light-dark(#ffffff, #14181e);
  --line: light-dark(#dfe4ea, #303946);
  --field: light-dark(#f6f8fa, #1a2028); --benign: light-dark(#1f6fab, #5aaee8);
  --harmful: light-dark(#c25400, #ff8f45); --theta: light-dark(#00805d, #2cc99b);
  --guess: light-dark(#a1427c, #e79ac6); --good: light-dark(#00704f, #3ddba8);
  --bad: light-dark(#b3261e, #ff8a80); }
:is([data-theme="light"], [data-jp-theme-light="true"]) .condnum-grab { color-scheme: light; }
:is([data-theme="dark"], [data-jp-theme-light="false"]) .condnum-grab { color-scheme: dark; }
.cg { font: 15px/1.4 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--ink);
  background: var(--paper); padding: 8px 12px; border-radius: 10px; max-width: 900px; margin: 0 auto; }
.cg * { box-sizing: border-box; }
.cg p { margin: 0 0 8px; max-width: none; }
.cg sub { line-height: 0; } .cg-whole { white-space: nowrap; }
.cg .benign { --own: var(--benign); } .cg .harmful { --own: var(--harmful); }
.cg .theta { --own: var(--theta); } .cg .guess { --own: var(--guess); }
.cg :is(b, h3):is(.benign, .harmful, .theta, .guess) { color: var(--own); }
.cg .good { color: var(--good); } .cg .bad { color: var(--bad); }
.cg-buttons { display: flex; flex-wrap: wrap; gap: 6px; margin-bottom: 8px; }
.cg-buttons button { font: inherit; font-size: 14px; color: var(--ink); background: var(--field);
  border: 1px solid var(--line); border-radius: 16px; padding: 3px 10px; min-height: 30px; cursor: pointer; }
.cg-buttons button:hover { border-color: var(--soft); }
.cg-buttons .action { border-color: var(--theta); }
.cg-task { display: grid; grid-template-columns: repeat(3, 1fr) minmax(205px, 1fr); gap: 12px;
  margin-bottom: 4px; }
.cg figure { margin: 0; min-width: 0; }
.cg figcaption { font-size: 13px; line-height: 21px; color: var(--soft); white-space: nowrap; }
.cg svg { display: block; width: 100%; background: var(--field); border-radius: 8px; user-select: none; }
.cg svg * { vector-effect: non-scaling-stroke; fill: none; stroke: var(--own); stroke-width: 1.5; }
.cg .area { fill: var(--own); fill-opacity: 0.15; stroke-width: 2.5; }
.cg .area.theta { fill-opacity: 0.1; }
.cg .area.guess { fill: none; stroke-dasharray: 6 5; }
.cg .area.level { stroke-width: 1; stroke-opacity: 0.5; fill-opacity: 0.09; }
.cg .axis.guess { stroke-dasharray: 2 4; }
.cg .path { stroke: var(--ink); stroke-width: 1.2; stroke-linejoin: round; stroke-opacity: 0.75; }
.cg .ball { fill: var(--ink); stroke: var(--paper); }
.cg .goal { stroke: var(--soft); }
.cg .handle { cursor: grab; outline: none; }
.cg .hit { fill: transparent; stroke: none; }
.cg .dot { fill: var(--own); stroke: var(--paper); stroke-width: 2; }
.cg .handle:is(:focus-visible, :active) .dot { stroke: var(--ink); stroke-width: 3; }
.cg svg text { font-size: 13px; font-weight: 600; fill: var(--own); stroke: var(--field); stroke-width: 3px;
  paint-order: stroke; text-anchor: middle; pointer-events: none; }
.cg-numbers { align-self: center; font-variant-numeric: tabular-nums; }
.cg-numbers h3 { margin: 0 0 2px; font-size: 15px; font-family: inherit; }
.cg-numbers div { font-size: 14px; min-height: 1.4em; }
.cg-numbers .kappa { font-size: 22px; font-weight: 650; }
.cg-verdict { margin-top: 8px; padding: 6px 12px; border-left: 5px solid var(--bad); background: var(--field);
  border-radius: 0 8px 8px 0; position: sticky; bottom: 0; font-variant-numeric: tabular-nums;
  box-shadow: 0 -6px 8px var(--paper); }
.cg-verdict.success { border-color: var(--good); }
.cg-verdict b { color: var(--bad); } .cg-verdict.success b { color: var(--good); }
.cg-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@container (max-width: 800px) {
  .cg-task { grid-template-columns: repeat(3, 1fr); gap: 6px 12px; margin-bottom: 10px; }
  .cg-numbers { grid-column: 1 / -1; display: flex; flex-wrap: wrap; gap: 0 18px; align-items: baseline; }
}
@container (max-width: 640px) {
  .cg { font-size: 14px; padding: 6px 8px; }
  .cg-buttons { gap: 5px; } .cg-buttons button { font-size: 13px; }
  .cg-tasks { display: grid; grid-template-columns: 1fr 1fr; gap: 8px; }
  .cg-task { display: flex; flex-direction: column; gap: 4px; min-width: 0; }
  .cg-task > :nth-child(n + 2) { order: 2; }
  .cg-task .cg-numbers { order: 1; align-self: start; display: block; }
  .cg-numbers h3 { display: none; }
  .cg-numbers div { font-size: 13px; } .cg-numbers .kappa { font-size: 17px; }
  .cg-numbers .eq10 { min-height: 2.8em; }
  .cg-verdict { font-size: 13px; min-height: 5.8em; }
}`;
  const SIZE = 120; // half the side of a picture, in which the length 1 is 100
  const VALLEY = 110; // half the length of the outer level of the loss
  const STEP = 110, LONGEST_RACE = 110, PAUSE = 12; // milliseconds a step; steps
  const LOOK = 4000; // milliseconds before the best θ is played
  const SNAP = 1.5; // degrees within which a dragged axis falls on another ellipse's
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const copy = (state) => Object.fromEntries(ELLIPSES.map((name) => [name, [...state[name]]]));
  const turned = (degrees) => degrees - 360 * Math.ceil((degrees - 180) / 360); // into (-180, 180]
  const rounded = (value, unit) => Math.round(value / unit) / Math.round(1 / unit);

  function draw(parent, tag, kind, attributes = {}) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    element.setAttribute("class", kind);
    set(element, attributes);
    return parent.appendChild(element);
  }
  function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  }
  const place = (ellipse, rx, ry, degrees) =>
    set(ellipse, { rx: Math.max(rx, 0.4), ry: Math.max(ry, 0.4), transform: `rotate(${-degrees})` });
  const line = (element, length, degrees) => {
    const [x, y] = [length * cos(degrees), -length * sin(degrees)];
    set(element, { x1: -x, y1: -y, x2: x, y2: y });
    return [x, y];
  };
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  function grab(host, start, options = {}) {
    const { changed = () => {}, address = false } = options;
    let state = copy({ ...START, ...start }), moving = null, clock = 0;
    let shown = false, ticking = false, stale = true;
    const first = copy(state);
    host.classList.add("condnum-grab");
    const figure = (caption) => `<figure><figcaption>${caption}</figcaption></figure>`;
    const task = (name, title, letter) => `<div class="cg-task">
      ${figure(`<b class="${name}">${name} data K<sub>${letter}</sub></b>, <b class="theta">θ</b>`)}
      ${figure(`<b class="${name}">probe: H<sub>${letter}</sub></b>, <b class="guess">Eq. 10</b>`)}
      ${figure("")}
      <div class="cg-numbers"><h3 class="${name}">${title}</h3>
        <div class="kappa"></div><div class="steps"></div><div class="eq10"></div></div></div>`;
    host.innerHTML = `<style>${STYLE}</style><section class="cg" aria-label="Grab the vectors">
      <p>Features <b class="theta">θ</b> stretch the data of two tasks; a probe learns fast what comes out
      round, slowly what comes out thin: <span class="cg-whole">κ = (length ⁄ width)²</span>.
      <b>Drag the dots:</b> θ immunizes if the <b class="harmful">harmful</b> task gets thinner and the
      <b class="benign">benign</b> one does not.</p>
      <div class="cg-buttons" role="group" aria-label="Situations"></div>
      <div class="cg-tasks">${task("benign", "Benign task", "P")}
        ${task("harmful", "Harmful task", "H")}</div>
      <div class="cg-verdict"><b></b> <span></span> <span></span></div>
      <div class="cg-hidden" role="status"></div></section>`;
    const one = (selector, parent = host) => parent.querySelector(selector);
    const places = [...host.querySelectorAll("figure")];
    const numbers = [...host.querySelectorAll(".cg-numbers")];
    const scene = (figure, label, role) => draw(figure, "svg", "", {
      viewBox: `${-SIZE} ${-SIZE} ${2 * SIZE} ${2 * SIZE}`, "aria-label": label, role,
    });

    // An axis of an ellipse that can be dragged; θ's point the other way, so that aligned handles lie apart.
    function handle(picture, name, axis, owner) {
      const said = `${name === "theta" ? "θ" : `${name} data`}, ${axis ? "second" : "first"} axis`;
      const element = draw(picture, "g", `handle ${name}`, {
        tabindex: 0, role: "slider", "aria-label": name === "theta" ? `${said}, beside ${owner} data` : said,
        "aria-valuemin": SHORTEST, "aria-valuemax": LONGEST, "data-ellipse": name, "data-axis": axis,
      });
      draw(element, "circle", "hit", { r: 26 });
      draw(element, "circle", "dot", { r: 7 });
      return { element, name, axis, sign: name === "theta" ? -1 : 1, x: 0, y: 0 };
    }
    const rows = TASKS.map((name, row) => {
      const [data, product, valley] = ["data and θ", "what a probe sees", "training"].map((what, column) =>
        scene(places[3 * row + column], `${name} task: ${what}`, column ? "img" : "group"));
      const owners = ["theta", name];
      const shapes = owners.map((owner) => draw(data, "ellipse", `area ${owner}`));
      const axes = owners.flatMap((owner) => [0, 1].map(() => draw(data, "line", `axis ${owner}`)));
      const labels = owners.map((owner) => draw(data, "text", owner));
      labels[0].textContent = "θ";
      labels[1].textContent = "data";
      const handles = owners.flatMap((owner) => [0, 1].map((axis) => handle(data, owner, axis, name)));
      listen(data, handles);
      return {
        name, shapes, axes, labels, handles,
        truth: draw(product, "ellipse", `area ${name}`), guess: draw(product, "ellipse", "area guess"),
        truthAxes: [0, 1].map(() => draw(product, "line", `axis ${name}`)),
        guessAxes: [0, 1].map(() => draw(product, "line", "axis guess")),
        levels: [1, 0.7, 0.4].map((size) => [size, draw(valley, "ellipse", `area level ${name}`)]),
        goal: draw(valley, "path", "goal", { d: "M-4,0H4M0,-4V4" }),
        path: draw(valley, "polyline", "path"), ball: draw(valley, "circle", "ball", { r: 6 }),
        caption: one("figcaption", places[3 * row + 2]),
        kappa: one(".kappa", numbers[row]), eq10: one(".eq10", numbers[row]),
        steps: one(".steps", numbers[row]),
      };
    });

    function listen(picture, handles) {
      let held = null;
      const point = (event) => {
        const box = picture.getBoundingClientRect(), unit = (2 * SIZE) / box.width;
        return [(event.clientX - box.left) * unit - SIZE, (event.clientY - box.top) * unit - SIZE];
      };
      picture.addEventListener("pointerdown", (event) => {
        if (event.button || !event.target.closest(".handle")) return;
        const [x, y] = point(event), far = (handle) => Math.hypot(handle.x - x, handle.y - y);
        const nearest = handles.reduce((best, other) => (far(other) < far(best) ? other : best));
        held = { ...nearest, dx: nearest.x - x, dy: nearest.y - y };
        moving = null;
        picture.setPointerCapture(event.pointerId);
        nearest.element.focus({ preventScroll: true });
        event.preventDefault();
      });
      // A finger on a handle does not scroll; Chromium does despite `touch-action` on parts of a drawing.
      const still = (event) => { if (event.target.closest(".handle")) event.preventDefault(); };
      picture.addEventListener("touchstart", still, { passive: false });
      picture.addEventListener("pointermove", (event) => {
        if (!held) return;
        const [x, y] = point(event), { name, axis, sign, dx, dy } = held;
        const [right, up] = [sign * (x + dx), -sign * (y + dy)];
        const angle = (Math.atan2(up, right) * 180) / Math.PI - 90 * axis;
        reshape(name, axis, Math.hypot(right, up) / 100, angle, true);
      });
      for (const end of ["pointerup", "pointercancel"]) {
        picture.addEventListener(end, () => { if (held) { held = null; settle(); } });
      }
      for (const { element, name, axis } of handles) {
        element.addEventListener("keydown", (event) => {
          const [turn, grow] = {
            ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 0.02], ArrowDown: [0, -0.02],
          }[event.key] ?? [0, 0];
          if (!turn && !grow) return;
          const fine = event.shiftKey ? 0.1 : 1;
          moving = null;
          reshape(name, axis, state[name][axis] + fine * grow, state[name][2] + fine * turn);
          event.preventDefault();
        });
        element.addEventListener("keyup", (event) => { if (event.key.startsWith("Arrow")) settle(); });
      }
    }

    function reshape(name, axis, length, degrees, snap = false) {
      const values = [...state[name]];
      values[axis] = Math.min(LONGEST, Math.max(SHORTEST, rounded(length, 0.001)));
      values[2] = turned(rounded(degrees, 0.1));
      if (snap) {
        const other = values[1 - axis];
        if (Math.abs(values[axis] - other) < 0.012) values[axis] = other;
        for (const partner of ELLIPSES.filter((partner) => partner !== name)) {
          const quarter = 90 * Math.round((values[2] - state[partner][2]) / 90);
          const level = state[partner][2] + quarter;
          if (Math.abs(values[2] - level) < SNAP) { values[2] = turned(level); break; }
        }
      }
      state = { ...state, [name]: values };
      refresh();
    }
    function refresh() {
      stale = true;
      changed(copy(state));
      wake();
    }
    // After a gesture: the address, and a sentence for who listens.
    function settle(tell = address) {
      paint();
      if (tell && location.hash.slice(1) !== written(state)) location.hash = written(state);
      const parts = [...host.querySelectorAll(".cg-verdict > *")].map((part) => part.textContent);
      say(one("[role=status]"), parts.join(" "));
    }
    // Where the picture is going: what a button says holds there, not on the way.
    const aim = () => moving?.to ?? state;
    // Move to a state, within half a second where that is seen.
    function go(target, tell = address) {
      moving = { from: copy(state), to: copy({ ...aim(), ...target }), began: performance.now(), tell };
      if (calm.matches || !shown) step(Infinity);
      else wake();
    }
    function step(now) {
      const { from, to, began, tell } = moving, part = Math.min(1, Math.max(0, (now - began) / 500));
      const ease = part * part * (3 - 2 * part);
      const between = (a, b) => a + ease * (b - a);
      state = part === 1 ? to : Object.fromEntries(ELLIPSES.map((name) => [name, [
        between(from[name][0], to[name][0]), between(from[name][1], to[name][1]),
        from[name][2] + ease * turned(to[name][2] - from[name][2]),
      ]]));
      refresh();
      if (part === 1) { moving = null; settle(tell); }
    }

    function paint() {
      if (!stale) return;
      stale = false;
      clock = performance.now();
      const found = measure(state);
      for (const row of rows) {
        const { name } = row, task = found[name];
        for (const [i, owner] of ["theta", name].entries()) {
          const [a, b, degrees] = state[owner];
          place(row.shapes[i], 100 * a, 100 * b, degrees);
          for (const axis of [0, 1]) {
            const handle = row.handles[2 * i + axis], direction = turned(degrees + 90 * axis);
            const end = line(row.axes[2 * i + axis], 100 * state[owner][axis], direction);
            [handle.x, handle.y] = [handle.sign * end[0], handle.sign * end[1]];
            set(handle.element, {
              transform: `translate(${handle.x} ${handle.y})`, "aria-valuenow": state[owner][axis],
              "aria-valuetext": `length ${num(state[owner][axis])}, direction ${num(direction)}°`,
            });
          }
          const end = row.handles[2 * i + (a < b ? 1 : 0)], reach = Math.hypot(end.x, end.y);
          const along = 1 - 26 / reach, aside = (67 * Math.min(a, b) + 10) / reach; // just outside
          set(row.labels[i], { x: along * end.x - aside * end.y, y: along * end.y + aside * end.x + 4 });
        }
        const roots = task.spectrum.map(Math.sqrt), unit = 100 / roots[0];
        place(row.truth, 100, unit * roots[1], task.direction);
        [0, 1].forEach((i) => line(row.truthAxes[i], unit * roots[i], task.direction + 90 * i));
        const guess = task.predicted.map((value) => unit * Math.sqrt(value));
        place(row.guess, ...guess, state.theta[2]);
        [0, 1].forEach((i) => line(row.guessAxes[i], guess[i], state.theta[2] + 90 * i));
        for (const [size, level] of row.levels) { // flat along the short axis of H
          place(level, (size * VALLEY) / Math.sqrt(task.condition), size * VALLEY, task.direction);
        }
        const ends = Array.from({ length: Math.min(task.steps, LONGEST_RACE) + 1 }, (_, n) => spot(task, n));
        row.path.setAttribute("points", ends.map((end) => end.map((x) => x.toFixed(2)).join()).join(" "));
        row.task = task;
        say(row.kappa, `κ ${num(task.before)} → ${num(task.condition)}`);
        const [says, kind] = eq10(task, state.theta);
        say(row.eq10, says);
        row.eq10.className = `eq10 ${kind}`;
        say(row.steps, `steps: ${num(task.stepsBefore, 6)} → ${num(task.steps, 6)}`);
      }
      const box = one(".cg-verdict"), [head, both, limit] = verdict(found, state);
      box.classList.toggle("success", found.success);
      [head, both, limit].forEach((text, i) => say(box.children[i], text));
      roll(clock);
    }
    function spot(task, t) {
      const [steep, flat] = ballAt(task.condition, t), [c, d] = [cos(task.direction), sin(task.direction)];
      const unit = VALLEY / Math.sqrt(1 + 1 / task.condition); // the start lies on the outer level
      return [unit * (steep * c - flat * d), -unit * (steep * d + flat * c)];
    }
    function roll(now) {
      const longest = Math.min(LONGEST_RACE, Math.max(...rows.map((row) => row.task.steps)));
      const time = calm.matches ? longest : (Math.max(0, now - clock) / STEP) % (longest + PAUSE);
      for (const row of rows) {
        const t = Math.min(time, row.task.steps, LONGEST_RACE), [cx, cy] = spot(row.task, t);
        set(row.ball, { cx, cy });
        const done = t === row.task.steps, word = t === 1 ? "step" : "steps";
        say(row.caption, done ? `trained in ${t} ${word}` : `training: step ${Math.floor(t)}`);
      }
    }
    function tick(now) {
      ticking = false;
      if (!host.isConnected || !shown) return;
      if (moving) step(now);
      if (stale) paint();
      else roll(now);
      if (moving || !calm.matches) wake();
    }
    function wake() {
      if (!ticking) { ticking = true; requestAnimationFrame(tick); }
    }

    const button = (className, [textContent, title, target]) => {
      const onclick = () => go(typeof target === "function" ? target(aim()) : target);
      const made = document.createElement("button");
      Object.assign(made, { type: "button", className, textContent, title, onclick });
      one(".cg-buttons").append(made);
    };
    PRESETS.forEach((preset) => button("", preset));
    ACTIONS.forEach((action) => button("action", action));
    function follow() {
      try {
        const asked = location.hash ? read(location.hash, aim()) : first;
        if (asked && written(asked) !== written(aim())) go(asked, false);
      } catch (error) {
        say(one(".cg-verdict").children[1], error.message);
        say(one("[role=status]"), error.message);
      }
    }
    paint();
    new IntersectionObserver(([entry]) => { shown = entry.isIntersecting; if (shown) wake(); }).observe(host);
    if (address) {
      follow();
      addEventListener("hashchange", follow);
    }
    // From the data as they are to the best θ, after a look at how fast both tasks train; a hand stops it.
    let turn = 0;
    const play = () => {
      clearTimeout(turn);
      turn = setTimeout(() => go({ theta: bestTheta(state) }, false), LOOK);
      return { theta: [1, 1, 0] };
    };
    if (options.play) {
      button("action", ["▶ Play", "from no θ to the best one", play]);
      for (const act of ["pointerdown", "keydown"]) host.addEventListener(act, () => clearTimeout(turn), true);
      const seen = new IntersectionObserver(([entry]) => {
        if (!entry.isIntersecting) return;
        seen.disconnect();
        if (!calm.matches) go(play(), false);
      }, { threshold: 0.2 });
      seen.observe(host);
    }
    return {
      set(values) {
        state = copy({ ...state, ...values });
        moving = null;
        stale = true;
        wake();
      },
    };
  }

  // Classic script: the page's own `condnum` if there is one. Marked places are drawn into at once.
  const shared = typeof condnum === "object" ? condnum : (globalThis.condnum = {});
  shared.grab = Object.assign(grab, { measure, ballAt, read, written });
  const begin = () => {
    for (const host of document.querySelectorAll(".condnum-grab[data-state]:empty")) {
      const { state, ...given } = host.dataset;
      grab(host, JSON.parse(state), { address: "address" in given, play: "play" in given });
    }
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", begin);
  else begin();
})();
