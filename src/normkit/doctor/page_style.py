"""The look of the doctor's page: that of the lab's. ``§`` stands for what the rules are confined to."""

from __future__ import annotations

__all__ = ["PAGE", "SCOPED"]

LIGHT = "--paper: #fff; --ink: #1c1e21; --accent: #0b62a8; color-scheme: light;"
DARK = "--paper: #15181c; --ink: #e6e8eb; --accent: #7cc0ff; color-scheme: dark;"

# The page around the report.
PAGE = f"""
:root {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {DARK} }} }}
:root[data-theme="dark"] {{ {DARK} }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }}
header {{ display: flex; justify-content: space-between; align-items: center; max-width: 62rem;
  margin: 0 auto; padding: .8rem 1rem; box-sizing: border-box; }}
.brand {{ font-weight: 700; letter-spacing: .02em; color: var(--accent); }}
#theme {{ font: inherit; font-size: 1.2rem; line-height: 1; padding: .4rem .6rem; color: var(--ink);
  background: none; border: 1px solid color-mix(in srgb, currentColor 25%, transparent);
  border-radius: .5rem; cursor: pointer; }}
#theme:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
main {{ max-width: 62rem; margin: 0 auto; padding: 0 1rem 4rem; box-sizing: border-box; }}
h1 {{ font-size: clamp(1.4rem, 4.5vw, 2rem); line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere; }}
@media print {{ #theme {{ display: none; }} :root {{ {LIGHT} }} }}
"""

# The report itself. It takes the colour of the text around it; badges are white on a colour of their own,
# so they can be read on any background.
SCOPED = """
§ { --line: color-mix(in srgb, currentColor 18%, transparent);
  --card: color-mix(in srgb, currentColor 5%, transparent);
  --error: #b42318; --warning: #9a5b00; --info: #475467; --good: #0f766e; line-height: 1.5; }
§ * { box-sizing: border-box; }
§ h2 { font-size: 1.3rem; margin: 2.2rem 0 .6rem; }
§ h3 { font-size: 1.05rem; margin: 0; }
§ p { max-width: 46rem; margin: .4rem 0; overflow-wrap: anywhere; }
§ code, § pre { font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace; font-size: .85em;
  color: inherit; background: none; overflow-wrap: anywhere; }
§ pre { margin: .3rem 0; padding: .5rem .7rem; background: var(--card); border-radius: .4rem;
  white-space: pre-wrap; }
§ .note, § .safe, § summary { font-size: .9rem; opacity: .8; }
§ .verdict { background: var(--card); border-left: 5px solid var(--good); border-radius: .5rem;
  padding: .5rem 1.2rem; margin: 1rem 0; }
§ .verdict .says { font-size: 1.35rem; font-weight: 650; }
§ .verdict.error, § .finding.error { border-left-color: var(--error); }
§ .verdict.warning, § .finding.warning { border-left-color: var(--warning); }
§ .badge { display: inline-block; font-size: .75rem; font-weight: 600; line-height: 1.5;
  padding: .05rem .55rem; border-radius: 1rem; color: #fff; background: var(--info); white-space: nowrap;
  vertical-align: middle; margin-right: .3rem; }
§ .badge.error { background: var(--error); }
§ .badge.warning { background: var(--warning); }
§ .finding { border: 1px solid var(--line); border-left: 5px solid var(--info); border-radius: .5rem;
  padding: .8rem 1.2rem; margin: .9rem 0; break-inside: avoid; }
§ .where { margin: .2rem 0; opacity: .85; }
§ .finding > table { margin: .5rem 0; }
§ table { border-collapse: collapse; font-size: .9rem; width: 100%; margin: 0; }
§ th, § td { padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top; border: 0;
  border-top: 1px solid var(--line); background: none; white-space: normal; overflow-wrap: anywhere; }
§ th { font-weight: 500; opacity: .75; width: 6.5rem; white-space: nowrap; }
§ .safe { display: block; }
§ details { margin: .4rem 0; }
§ summary { cursor: pointer; }
§ ul { margin: .3rem 0; padding-left: 1.2rem; max-height: 20rem; overflow-y: auto; }
§ .model { display: grid; grid-template-columns: 360px minmax(0, 1fr); gap: 1.5rem; align-items: start; }
§ figure { margin: 0; max-width: 100%; max-height: 60rem; overflow: auto; }
§ figure svg { display: block; max-width: 100%; height: auto; }
§ .norms th { width: auto; }
§ .norms code { overflow-wrap: break-word; }
§ .norms thead th { border-top: 0; }
§ .norms .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; width: 3rem; }
§ .norms td + td { min-width: 5.5rem; }
§ dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .9rem;
  margin: .4rem 0; }
§ dt { font-weight: 600; }
§ dd { margin: 0; }
@media (max-width: 800px) { § .model { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 600px) {
  § .verdict, § .finding { padding-left: .9rem; padding-right: .9rem; }
  § .finding > table th { width: 5rem; }
  § .finding > table td { padding-right: 0; }
  § .norms thead { display: none; }
  § .norms tr { display: block; padding: .4rem 0; border-top: 1px solid var(--line); }
  § .norms td { display: inline; border: 0; padding: 0 .5rem 0 0; }
  § .norms td:nth-child(3) { display: block; }
}
@media print { § figure { max-height: none; overflow: visible; } § .model { grid-template-columns: 1fr; } }
"""
