// Plays recorded explorers when they come near.
{
  const here = document.currentScript.src;
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
}
