//! The style of the report, for light and dark.

/// CSS of the page; it refers to nothing outside.
pub const STYLE: &str = r"
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5c6779;
  --line: #e2e6ec; --strong: #9aa5b5; --accent: #2f6fde; --warn-bg: #fff6e0; --warn: #7a5200;
  --bad: #b3261e; --good: #1b7f4b;
  --c0: #2f6fde; --c1: #d9622b; --c2: #1b8a5a; --c3: #8e44c9; --c4: #b8860b; --c5: #c2185b;
  --c6: #00838f; --c7: #5d6d7e; }
@media (prefers-color-scheme: dark) { :root { --bg: #12161d; --card: #1a202a; --ink: #e8ecf2;
  --soft: #9aa6b8; --line: #2a323f; --strong: #56627a; --accent: #7fb0ff; --warn-bg: #33290f;
  --warn: #f2cf7c; --bad: #ff8a80; --good: #6fd6a0;
  --c0: #7fb0ff; --c1: #ff9a66; --c2: #6fd6a0; --c3: #cf9bff; --c4: #e6c15a; --c5: #ff85b3;
  --c6: #62d2de; --c7: #aab6c6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 36px 0 12px; }
.lead { color: var(--soft); margin: 0 0 20px; }
.notice { background: var(--warn-bg); color: var(--warn); border-radius: 10px; padding: 12px 16px;
  margin: 0 0 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px;
  margin: 0 0 22px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 14px 16px; }
.tile b { display: block; font-size: 22px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr));
  gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 10px 10px 6px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-size: 16px; font-weight: 600; }
svg .note, svg .tick, svg .axis { fill: var(--soft); }
svg .note { font-size: 11.5px; }
svg .legend { font-size: 12px; }
svg .value { font-size: 12px; font-weight: 600; font-variant-numeric: tabular-nums; }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .base { stroke: var(--strong); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.75; opacity: 0.55; }
svg .range { fill: none; stroke-width: 1.6; }
svg .marker { stroke: var(--card); stroke-width: 1.5; }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); } .s7 { --c: var(--c7); }
svg .marker, svg .key { fill: var(--c); } svg .line, svg .range { stroke: var(--c); }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 8px 12px; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } tr:last-child td { border-bottom: 0; }
th.t, td.t { text-align: left; }
.tag { font-size: 11.5px; color: var(--warn); background: var(--warn-bg); border-radius: 6px;
  padding: 1px 7px; }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0;
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
";
