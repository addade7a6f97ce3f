"""The style sheet of a report: light and dark, wide and narrow, screen and paper."""

__all__ = ["CSS"]

CSS = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5a6577; --line: #dfe4ea; --accent: #0b62d6;
  --accent-soft: #e8f1fd; --good: #12774a; --warn: #8a5a00; --warn-soft: #fff6e0; --keys: #0b62d6; --absent: #c4561d;
  --c0: #7a3fb0; --c1: #c4561d; --c2: #12774a; --c3: #b3186f; --c4: #6b6f1d; --c5: #177e8f; --c6: #8c5a3c;
  --c7: #5b6b8c;
  --c8: #a33a3a; --c9: #3f7f3f; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161d; --card: #1a2029; --ink: #e7ebf1; --soft: #a3adbb; --line: #313a47; --accent: #6cacff;
  --accent-soft: #1a2a41; --good: #5fd3a0; --warn: #ffcf70; --warn-soft: #33290f; --keys: #6cacff; --absent: #ff9a62;
  --c0: #c59bf0; --c1: #ff9a62; --c2: #5fd3a0; --c3: #ff86c8; --c4: #cfd36a; --c5: #67d3e6; --c6: #dcae8e;
  --c7: #a9b8d6;
  --c8: #ff9090; --c9: #93d893; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Noto Sans", sans-serif; overflow-wrap: break-word; }
main, header.top, footer { max-width: 1040px; margin: 0 auto; padding: 0 16px; }
header.top { padding-top: 28px; }
h1 { font-size: 1.05rem; font-weight: 600; color: var(--soft); margin: 0; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 0 0 .35em; }
h3 { font-size: 1.02rem; margin: 1.4em 0 .3em; }
p { margin: .4em 0 .8em; max-width: 72ch; }
.answer { font-size: clamp(1.3rem, 3.4vw, 1.85rem); line-height: 1.32; font-weight: 650; margin: .4em 0 .9em;
  max-width: 44ch; letter-spacing: -.01em; }
.price { margin: -.6em 0 1.4em; color: var(--soft); max-width: 66ch; }
.soft, figcaption, caption { color: var(--soft); }
.small { font-size: .88rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 22px; margin: 18px 0; }
.figures { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin: 0 0 18px; padding: 0;
  list-style: none; }
.figures li { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 14px 16px; }
.figures b { display: block; font-size: 1.65rem; line-height: 1.2; letter-spacing: -.02em; }
.figures .what { display: block; font-size: .85rem; color: var(--soft); }
.figures .note { display: block; font-size: .85rem; margin-top: .35em; }
.good { color: var(--good); }
.warnings { background: var(--warn-soft); border-color: var(--warn); }
.warnings ul { margin: .3em 0 0; padding-left: 1.2em; }
.warnings li { margin: .35em 0; }
code, pre, .key { font: .87em/1.5 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
p code, li code { white-space: nowrap; }
pre { background: var(--accent-soft); border-radius: 9px; padding: 10px 12px; margin: .5em 0; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.key { overflow-wrap: anywhere; unicode-bidi: isolate; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 26px; }
figure { margin: .8em 0; min-width: 0; }
figure h3 { margin-top: 0; }
figcaption { font-size: .88rem; margin-top: .4em; }
svg.chart { display: block; width: 100%; max-width: 560px; height: auto; }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--soft); }
svg text.label { fill: var(--ink); } svg text.name { fill: var(--ink); font-weight: 650; }
svg text.value { fill: var(--ink); font-weight: 600; } svg text.noted { font-size: 10.5px; fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.note { stroke: var(--soft); } line.note { stroke-width: 1; stroke-dasharray: 3 3; }
.border { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 3; opacity: .6; }
.line { fill: none; stroke-width: 1.7; stroke: var(--c); } .dot { fill: var(--c); stroke: var(--card);
  stroke-width: 1; }
.bar { fill: var(--c); }
.main { --c: var(--accent); } .line.main { stroke-width: 3.4; } .bound { --c: var(--soft); } .plain { --c: var(--c7); }
.keys { --c: var(--keys); } .absent { --c: var(--absent); } .lmdb { --c: var(--c1); } .hash { --c: var(--c5); }
.model { --c: var(--c0); } .filter { --c: var(--accent); } .call { --c: var(--c7); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); } .c8 { --c: var(--c8); } .c9 { --c: var(--c9); }
.mark { fill: var(--c); stroke: var(--card); stroke-width: 1; } svg text.letter { fill: var(--card); font-size: 10px;
  font-weight: 700; }
.example { display: block; font-size: .85rem; margin-bottom: .25em; } th.text { width: 34%; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; margin: .5em 0 0; padding: 0;
  font-size: .82rem; }
.legend li { display: inline-flex; align-items: center; gap: 6px; }
.swatch { width: 26px; height: 11px; flex: none; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .88rem; padding-bottom: .4em; }
th, td { text-align: right; padding: 7px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; font-size: .82rem; color: var(--soft); vertical-align: bottom; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
tbody th { color: var(--ink); font-size: .9rem; vertical-align: top; }
tr.chosen { background: var(--accent-soft); }
td .sub, th .sub { display: block; font-size: .8rem; font-weight: 400; color: var(--soft); }
.tag { display: inline-block; background: var(--accent); color: var(--card); border-radius: 99px; font-size: .72rem;
  padding: 1px 8px; margin-left: 6px; white-space: nowrap; }
details { margin: .9em 0 0; } summary { cursor: pointer; color: var(--accent); font-weight: 600; font-size: .92rem;
  padding: 4px 0; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; border-radius: 4px; }
dl { margin: .4em 0; } dt { font-weight: 650; margin-top: .7em; } dd { margin: 0; max-width: 72ch; }
footer { padding-bottom: 36px; color: var(--soft); font-size: .85rem; }
@media screen and (min-width: 761px) and (max-width: 1000px) {
  svg text { font-size: 14px; } svg text.noted { font-size: 12px; }
  table.wide, table.wide tbody th { font-size: .82rem; } table.wide th { font-size: .78rem; }
  table.wide th, table.wide td { padding: 6px 4px; }
}
@media screen and (max-width: 760px) {
  main, header.top, footer { padding-left: 12px; padding-right: 12px; }
  svg text { font-size: 14px; } svg text.noted { font-size: 12px; }
  section { padding: 16px 14px; } .figures { grid-template-columns: 1fr 1fr; } .figures b { font-size: 1.35rem; }
  .pair { grid-template-columns: minmax(0, 1fr); gap: 8px; }
  table.wide, table.wide tbody, table.wide tr, table.wide caption { display: block; }
  table.wide thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table.wide tr { border: 1px solid var(--line); border-radius: 10px; margin: 0 0 10px; padding: 8px 12px; }
  table.wide th, table.wide td { display: flex; justify-content: space-between; gap: 12px; border: 0; padding: 2px 0;
    text-align: right; }
  table.wide tbody th { display: block; text-align: left; padding-bottom: 4px; }
  table.wide td::before { content: attr(data-label); color: var(--soft); text-align: left; flex: none; max-width: 60%; }
  table.wide td.text { display: block; text-align: left; } table.wide td.text::before { display: block;
  max-width: none; }
}
@media print {
  :root { --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc; --accent: #0b50b0;
  --accent-soft: #eef3fb;
    --good: #12774a; --warn: #8a5a00; --warn-soft: #fff; --keys: #0b50b0; --absent: #c4561d; --c0: #7a3fb0;
  --c1: #c4561d;
    --c2: #12774a; --c3: #b3186f; --c4: #6b6f1d; --c5: #177e8f; --c6: #8c5a3c; --c7: #5b6b8c; --c8: #a33a3a;
  --c9: #3f7f3f; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 10.5pt; } section { border: 0; border-top: 1px solid #ccc; border-radius: 0; padding: 10px 0; }
  main, header.top, footer { max-width: none; padding: 0; } figure, tr, .figures li, h2, h3 { break-inside: avoid; }
  h2, h3, caption, thead, dt { break-after: avoid; } caption { break-inside: avoid; }
  section > p { break-before: avoid; } svg.chart { max-width: 420px; } table { font-size: 8.5pt; }
  th, td { padding: 3px 5px; } tbody th { font-size: 8.5pt; } th .sub, td .sub { font-size: 7.5pt; }
  details.numbers { display: none; }
  details::details-content { content-visibility: visible; display: block; height: auto; } summary { color: #000; }
}
"""
