"""The frame of every page that we write: one self-contained file, no network, light and dark, readable on a phone and by keyboard."""

import html

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f5f7f9; --line: #d0d7de; --link: #0550ae;
  --yes: #1a7f37; --no: #b3261e; --skip: #8a5a00; }
:root[data-theme="dark"] { --ink: #e6edf3; --soft: #9aa6b2; --paper: #0f1419; --card: #182028; --line: #35404b; --link: #79b8ff;
  --yes: #56d364; --no: #ff8077; --skip: #e3b341; }
:root[data-theme="light"] { color-scheme: light; }
:root[data-theme="dark"] { color-scheme: dark; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; } h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem; } h3 { font-size: 1.05rem; }
a { color: var(--link); } code, pre { font: 0.9em ui-monospace, monospace; }
pre { background: var(--card); padding: 0.75rem; overflow-x: auto; border-radius: 6px; }
p.soft, .soft { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.yes { color: var(--yes); font-weight: 600; } .no { color: var(--no); font-weight: 700; } .skip { color: var(--skip); font-weight: 600; }
button, summary { font: inherit; color: inherit; cursor: pointer; }
button { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 0.3rem 0.7rem; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip-link { position: absolute; left: -999rem; } .skip-link:focus { left: 1rem; top: 0.5rem; background: var(--paper); padding: 0.4rem; }
img { max-width: 100%; height: auto; }
@media (max-width: 40rem) { body { padding: 0.6rem; } h1 { font-size: 1.3rem; } table { font-size: 0.85rem; } }
@media print { button { display: none; } }
"""

# The theme follows the system until the button is pressed; pages listen to the event "theme" to color their charts.
THEME = """
const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
function theme(name) { root.dataset.theme = name; document.dispatchEvent(new Event("theme")); }
theme(system.matches ? "dark" : "light");
system.addEventListener("change", event => theme(event.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
"""


def shell(title: str, body: str, *, script: str = "", head: str = "") -> str:
    """A whole page around a body of ready HTML; `script` runs after everything is there, `head` goes behind the style."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{head}</head>\n<body>\n"
        '<a class="skip-link" href="#main">Skip to the content</a>\n<button id="theme" type="button">light / dark</button>\n'
        f'<main id="main">\n<h1>{escape(title)}</h1>\n{body}\n</main>\n<script>{THEME}{script}</script>\n</body>\n</html>\n'
    )


def escape(text: object) -> str:
    """Text that is safe inside an element or an attribute."""
    return html.escape(str(text))
