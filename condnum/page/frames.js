// Draws the figures of a page in the reader's colours and at the width of their frames, one after the other.
{
  const drawn = new Map(); // frames and the widths at which they were drawn

  const draw = (frame) => {
    const figure = JSON.parse(document.querySelector(`script[data-for="${frame.id}"]`).textContent);
    drawn.set(frame, frame.clientWidth);
    return condnum.paint(frame, figure).then(() => { frame.style.minHeight = 0; }); // it may need less
  };
  const watch = new ResizeObserver((frames) => {
    for (const { target } of frames)
      if (!condnum.printing() && Math.abs(target.clientWidth - drawn.get(target)) > 1) draw(target);
  });
  const inTurn = ([first, ...others]) => {
    if (!first) return;
    draw(first);
    watch.observe(first);
    setTimeout(inTurn, 0, others);
  };

  inTurn([...document.querySelectorAll(".plot-frame")]);
  condnum.onTheme(() => [...drawn.keys()].forEach(draw));
}
