// Draws the figures of a page in the reader's colours, then plays its recorded explorers, those in sight first.
{
  const here = document.currentScript.src;
  const frames = [...document.querySelectorAll(".plot-frame")], places = [...document.querySelectorAll(".condnum-recorded")];
  const drawn = new Set(), unopened = new Set(places), explorers = [];

  const draw = (frame) => {
    drawn.add(frame);
    return condnum.paint(frame, JSON.parse(document.querySelector(`script[data-for="${frame.id}"]`).textContent));
  };
  const redraw = () => drawn.forEach(draw);
  const print = (started) => {
    if (condnum.printing === started) return;
    condnum.printing = started;
    redraw();
    explorers.forEach(({ repaint }) => repaint());
  };

  const load = (name) => new Promise((done, failed) => {
    if (condnum.recordings[name]) { done(); return; }
    const script = Object.assign(document.createElement("script"), { src: new URL(`recorded/${name}.js`, here) });
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  });
  const open = async (place) => {
    if (!unopened.delete(place)) return;
    await load(place.dataset.explorer);
    explorers.push(await condnum.play(place, places.indexOf(place)));
  };
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) open(target);
  }, { rootMargin: "600px" });
  places.forEach((place) => near.observe(place));

  const inTurn = async ([first, ...others]) => { // far below too: a page may be printed before it is scrolled
    if (!first) return;
    try { await (first.matches(".plot-frame") ? draw : open)(first); } finally { setTimeout(inTurn, 0, others); }
  };
  inTurn([...frames, ...places]);

  // What is drawn has a height: the heading in the address stays in its place until the reader scrolls.
  const arrive = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const watch = new ResizeObserver(() => target.scrollIntoView({ behavior: "instant" }));
    watch.observe(document.querySelector("article"));
    for (const act of ["wheel", "touchmove", "pointerdown", "keydown", "hashchange"])
      addEventListener(act, () => watch.disconnect(), { once: true, passive: true });
  };
  addEventListener("hashchange", arrive);
  arrive();

  condnum.onTheme(redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
}
