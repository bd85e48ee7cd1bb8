// The ledger of the studies: search and filters.
{
  const search = document.getElementById("search");
  if (search) {
    const filters = ["note", "kind", "verdict"].map((name) => [name, document.getElementById(`by-${name}`)]);
    const controls = [search, ...filters.map(([, control]) => control)];
    const rows = [...document.querySelectorAll("#claims tbody tr")];
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !(
          words.every((word) => text.includes(word)) &&
          filters.every(([name, control]) => !control.value || row.dataset[name] === control.value)
        );
      }
      const shown = rows.filter((row) => !row.hidden).length;
      document.getElementById("count").textContent = `${shown} claims`;
    };
    for (const control of controls) control.addEventListener("input", filter);
    addEventListener("hashchange", () => {
      const wanted = document.getElementById(location.hash.slice(1));
      if (!wanted || !wanted.hidden) return;
      for (const control of controls) control.value = "";
      filter();
      wanted.scrollIntoView();
    });
  }
}
