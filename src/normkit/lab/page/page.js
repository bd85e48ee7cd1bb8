"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")];

  const colours = () => {
    const style = getComputedStyle(root);
    return { ink: style.getPropertyValue("--ink").trim(), paper: style.getPropertyValue("--paper").trim() };
  };
  const themed = (layout) => {
    const { ink, paper } = colours();
    return {
      ...layout,
      font: { ...layout.font, color: ink },
      hoverlabel: { bgcolor: paper, bordercolor: ink, font: { color: ink } },
    };
  };
  const fitted = (layout, data, width) => {
    const named = data.filter((trace) => trace.showlegend !== false && trace.name).length;
    const narrow = width < 600;
    const legend = layout.showlegend === false || named < 2 ? 0 : named * (narrow ? 22 : 6);
    const above = { orientation: "h", y: 1.02, yanchor: "bottom" }; // labels below may stand upright
    const more = narrow && legend ? { legend: { ...layout.legend, ...above } } : {};
    return { ...layout, ...more, height: layout.height + legend };
  };
  const draw = (plot) => {
    const { data, layout } = figures[plot.dataset.figure];
    return Plotly.react(plot, data, themed(fitted(layout, data, plot.clientWidth)), {
      responsive: true,
      displayModeBar: false,
    });
  };
  const drawAll = () => plots.forEach(draw);

  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();

  const value = (cell) => {
    const key = cell.dataset.sort ?? cell.textContent;
    const number = Number(key);
    return key === "" ? null : Number.isNaN(number) ? key : number;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null); // what has no value comes last
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((x, y) => {
          const [a, b] = [value(x.cells[column]), value(y.cells[column])];
          return (a === null || b === null ? 1 : down ? -1 : 1) * compare(a, b);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  const search = document.getElementById("search");
  if (search) {
    const [note, verdict] = ["by-note", "by-verdict"].map((id) => document.getElementById(id));
    const rows = [...document.querySelectorAll("#claims tbody tr")];
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !(
          words.every((word) => text.includes(word)) &&
          (!note.value || row.dataset.note === note.value) &&
          (!verdict.value || row.dataset.verdict === verdict.value)
        );
      }
      const shown = rows.filter((row) => !row.hidden).length;
      document.getElementById("count").textContent = `${shown} claims`;
    };
    for (const control of [search, note, verdict]) control.addEventListener("input", filter);
    addEventListener("hashchange", () => {
      const wanted = document.getElementById(location.hash.slice(1));
      if (!wanted || !wanted.hidden) return;
      search.value = note.value = verdict.value = "";
      filter();
      wanted.scrollIntoView();
    });
  }
})();
