// Draws the figures of a page in the reader's colours, one a frame; starts the explorers that were recorded.
{
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

  inTurn(frames);
  condnum.onTheme(redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
}
