// Keeps the place that the address names.
{
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
