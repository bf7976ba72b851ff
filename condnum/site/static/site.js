// Draws the figures of a page in the reader's colours, one a frame; plays recorded explorers when they come near.
{
  const here = document.currentScript.src;
  const frames = [...document.querySelectorAll(".plot-frame")];
  const drawn = new Set();
  let printing = false;

  const draw = (frame) => {
    const figure = JSON.parse(document.querySelector(`script[data-for="${frame.id}"]`).textContent);
    drawn.add(frame);
    return condnum.paint(frame, figure, printing ? { dark: false, printing } : {});
  };
  const redraw = () => drawn.forEach(draw);
  const inTurn = ([first, ...others]) => {
    if (!first) return;
    draw(first);
    setTimeout(inTurn, 0, others);
  };
  const print = (started) => {
    if (printing === started) return;
    printing = started;
    redraw();
  };

  const load = (name) => new Promise((done, failed) => {
    if (condnum.recordings[name]) { done(); return; }
    const script = Object.assign(document.createElement("script"), { src: new URL(`recorded/${name}.js`, here) });
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  });
  const places = [...document.querySelectorAll(".condnum-recorded")];
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      load(target.dataset.explorer).then(() => condnum.play(target, places.indexOf(target)));
    }
  }, { rootMargin: "600px" });
  places.forEach((place) => near.observe(place));

  inTurn(frames);
  condnum.onTheme(redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
}
