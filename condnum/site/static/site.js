// Plays recorded explorers, those that come near first, and keeps the place that the address names.
{
  const here = document.currentScript.src;
  const places = [...document.querySelectorAll(".condnum-recorded")], unopened = new Set(places);

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
    await condnum.play(place, places.indexOf(place));
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
}
