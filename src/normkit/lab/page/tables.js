// Tables: sorted by a heading; stacked, a card a row, where they are too wide; and commands to copy.
{
  const tables = [...document.querySelectorAll(".fit > table")];
  const fit = () => {
    for (const table of tables) table.classList.remove("stacked");
    const wide = tables.filter((table) => table.scrollWidth > table.parentElement.clientWidth);
    for (const table of wide) table.classList.add("stacked");
  };
  fit();
  addEventListener("resize", fit);

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

  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.parentElement.querySelector("code");
    button.addEventListener("click", async () => {
      getSelection().selectAllChildren(code); // for those who may not write to the clipboard
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected";
      }
    });
  }
}
