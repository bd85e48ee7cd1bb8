"use strict";
// A legend in HTML instead of plotly's: it wraps on a phone, and its entries are buttons.
const legendOf = (() => {
  const DASHES = {
    solid: "", dot: "2 2", dash: "6 3", longdash: "9 3", dashdot: "6 2 2 2", longdashdot: "9 2 2 2",
  };
  const SHAPES = {
    circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z",
    diamond: "M0-5L5 0L0 5L-5 0Z",
    square: "M-4-4H4V4H-4Z",
    cross: "M-1.5-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z",
    "triangle-up": "M0-5L5 4H-5Z",
    "triangle-down": "M0 5L5-4H-5Z",
    star: "M0-6L1.4-1.9H5.7L2.2.7L3.5 4.9L0 2.3L-3.5 4.9L-2.2.7L-5.7-1.9H-1.4Z",
    "x-thin": "M-5-5L5 5M5-5L-5 5",
  };
  const element = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const swatch = (trace) => {
    const svg = element("svg", { viewBox: "-16 -7 32 14", width: 32, height: 14, "aria-hidden": "true" });
    const mode = trace.mode ?? "";
    if (trace.fill || trace.type === "bar") {
      const fill = trace.fillcolor ?? trace.marker.color;
      svg.append(element("path", { d: "M-14-6H14V6H-14Z", fill }));
    } else if (mode.includes("lines")) {
      const dash = DASHES[trace.line.dash] ?? "";
      svg.append(element("path", { d: "M-16 0H16", stroke: trace.line.color, "stroke-width": 2, "stroke-dasharray": dash }));
    }
    if (mode.includes("markers")) {
      const { symbol, color, line } = trace.marker;
      const ink = color ?? line?.color ?? trace.line.color;
      svg.append(element("path", { d: SHAPES[symbol], fill: ink, stroke: ink, "stroke-width": symbol === "x-thin" ? 2 : 0 }));
    }
    return svg;
  };

  return (figure, redraw) => {
    const entries = figure.data.filter((trace) => trace.showlegend !== false && trace.name);
    if (figure.layout.showlegend === false || entries.length < 1 || figure.data.length < 2) return null;
    const legend = document.createElement("div");
    legend.className = "legend";
    for (const entry of entries) {
      const note = entry.meta === "note";
      const item = document.createElement(note ? "span" : "button");
      item.append(swatch(entry), entry.name);
      legend.append(item);
      if (note) continue;
      const members = entry.legendgroup
        ? figure.data.filter((trace) => trace.legendgroup === entry.legendgroup)
        : [entry];
      const show = () => item.setAttribute("aria-pressed", entry.visible !== "legendonly");
      item.type = "button";
      item.classList.toggle("extra", entry.visible === "legendonly"); // shown on demand: a box to tick
      item.addEventListener("click", () => {
        const visible = entry.visible === "legendonly" ? true : "legendonly";
        for (const trace of members) trace.visible = visible;
        show();
        redraw();
      });
      show();
    }
    return legend;
  };
})();
