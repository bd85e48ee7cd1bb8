// The ledger of the studies: search and filters.
{
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
}
