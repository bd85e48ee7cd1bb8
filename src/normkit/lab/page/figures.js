// Figures: what is on the screen first, the rest when there is time, all of them before printing.
{
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const waiting = new Set(document.querySelectorAll(".plot"));
  const drawn = new Set();
  const PAPER = 680; // pixels, the width of a sheet
  let printing = false;

  const themed = (layout) => {
    const style = getComputedStyle(root);
    const [ink, paper] = printing
      ? ["#000", "#fff"]
      : ["--ink", "--paper"].map((name) => style.getPropertyValue(name).trim());
    return {
      ...layout,
      ...(printing ? { width: PAPER } : {}),
      showlegend: false,
      font: { ...layout.font, color: ink },
      hoverlabel: { bgcolor: paper, bordercolor: ink, font: { color: ink } },
    };
  };
  const draw = (plot) => {
    const figure = figures[plot.dataset.figure];
    waiting.delete(plot);
    drawn.add(plot);
    Plotly.react(plot, figure.data, themed(figure.layout), { responsive: true, displayModeBar: false });
  };
  for (const plot of waiting) {
    const figure = figures[plot.dataset.figure];
    const legend = legendOf(figure, () => draw(plot));
    if (legend) plot.after(legend);
    plot.style.minHeight = `${figure.layout.height}px`; // so that nothing moves when it is drawn
  }

  const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 20));
  const next = () => {
    const [plot] = waiting;
    if (!plot) return;
    draw(plot);
    idle(next);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting && waiting.has(target)) draw(target);
  });
  for (const plot of waiting) seen.observe(plot);
  addEventListener("load", () => idle(next));
  const print = (now) => {
    printing = now;
    for (const plot of [...waiting, ...drawn]) draw(plot);
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));

  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    drawn.forEach(draw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
}
