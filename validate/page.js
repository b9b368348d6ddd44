// Draws the charts of validate/page.py from the data in the page: lazily, in the colors of the theme, on linear or logarithmic axes.
const experiments = JSON.parse(document.getElementById("data").textContent), charts = [...document.querySelectorAll(".chart")];
const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#888888"]; // Okabe and Ito
const logarithmic = experiments.map(one => ({ x: false, y: one.log }));
const drawn = new Set();
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const of = chart => ({ index: +chart.dataset.experiment, one: experiments[chart.dataset.experiment],
  panel: experiments[chart.dataset.experiment].panels[chart.dataset.panel] });
const logged = chart => logarithmic[of(chart).index];

function traces(chart) {
  const { one, panel } = of(chart), ink = css("--ink"), loss = panel.name === "loss" || panel.directions.every(name => !name);
  return panel.lines.map(line => {
    const color = COLORS[line.direction % COLORS.length], label = one.labels[line.rung] || "";
    const look = { other: { color: css("--line"), width: 1 }, training: { color, width: 7 },
      population: { color: loss ? COLORS[1] : color, width: 1.8 }, reduced: { color: ink, width: 1.3, dash: "6px,3px" } }[line.rung];
    return { type: "scatter", mode: "lines", x: one.time[line.rung] || one.time.training, y: line.y, line: look,
      opacity: line.rung === "training" ? (document.documentElement.dataset.theme === "dark" ? 0.62 : 0.38) : 1, hoverinfo: line.rung === "other" ? "skip" : undefined,
      name: [panel.directions[line.direction], label].filter(Boolean).join(", "), hovertemplate: "%{y:.4g}" };
  });
}

function span(panel, log) { // the range of values, as plotly wants it
  const all = panel.lines.flatMap(line => line.y).concat(panel.levels.map(level => level.value)).filter(y => y !== null && (!log || y > 0));
  const put = log ? Math.log10 : y => y, low = put(Math.min(...all)), high = put(Math.max(...all)), room = 0.05 * (high - low || 1);
  return [low - room, high + room];
}

function layout(chart) {
  const { one, panel } = of(chart), log = logged(chart), range = span(panel, log.y), soft = css("--soft"), line = css("--line");
  const wide = chart.clientWidth > 460, tall = chart.clientHeight - 74, names = panel.levels.map(level => level.label.length);
  const axis = { gridcolor: line, linecolor: line, zeroline: false, exponentformat: "power", color: soft };
  const levels = panel.levels.filter(level => !log.y || level.value > 0).sort((a, b) => a.value - b.value);
  let before = -Infinity;
  const labels = levels.map(level => { // level with its line, pushed up where labels crowd
    const place = ((log.y ? Math.log10(level.value) : level.value) - range[0]) / (range[1] - range[0]) * tall, at = Math.max(place, before + 13);
    before = at;
    return { text: level.label, showarrow: false, xref: "paper", x: 1, xanchor: wide ? "left" : "right", xshift: wide ? 4 : 0,
      yref: "paper", y: at / tall, yanchor: wide ? "middle" : "bottom", font: { size: 11, color: soft } };
  });
  const dotted = { color: soft, width: 1, dash: "dot" };
  const across = levels.map(level => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: level.value, y1: level.value, line: dotted, layer: "below" }));
  const upright = panel.moments.map(t => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: t, x1: t, line: dotted, layer: "below" }));
  return {
    margin: { l: 54, r: wide ? Math.min(150, 12 + 6.2 * Math.max(0, ...names)) : 10, t: 28, b: 46 }, showlegend: false,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: css("--link") }, uirevision: `${log.x}${log.y}`,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), size: 12 }, dragmode: wide ? "zoom" : false,
    hovermode: panel.lines.length < 10 ? "x unified" : "closest", hoverlabel: { bgcolor: css("--card"), bordercolor: line, font: { color: css("--ink") }, namelength: -1 },
    xaxis: { ...axis, title: { text: one.clock, standoff: 8 }, type: log.x ? "log" : "linear" },
    yaxis: { ...axis, type: log.y ? "log" : "linear", range, dtick: log.y && range[1] - range[0] > 1 ? 1 : undefined }, annotations: labels, shapes: across.concat(upright),
  };
}

function draw(chart) {
  Plotly.react(chart, traces(chart), layout(chart), { responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d"]] });
  if (drawn.has(chart)) return;
  drawn.add(chart);
  chart.on("plotly_relayout", change => { // the panels of an experiment share their clock; one that follows already is left alone
    const free = change["xaxis.autorange"], ends = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const others = siblings(chart).filter(other => other !== chart && drawn.has(other));
    if (free) others.filter(other => !other.layout.xaxis.autorange).forEach(other => Plotly.relayout(other, { "xaxis.autorange": true }));
    else if (ends[0] !== undefined) others.forEach(other => Plotly.relayout(other, { "xaxis.range": ends }));
  });
}
const siblings = chart => charts.filter(other => other.dataset.experiment === chart.dataset.experiment);
const again = some => some.filter(chart => drawn.has(chart)).forEach(draw);

const near = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
  near.unobserve(entry.target);
  draw(entry.target);
}), { rootMargin: "400px" });
charts.forEach(chart => near.observe(chart));
document.addEventListener("theme", () => again(charts));
document.querySelectorAll("[data-axis]").forEach(button => button.addEventListener("click", () => {
  const on = button.getAttribute("aria-pressed") !== "true", index = +button.dataset.experiment;
  button.setAttribute("aria-pressed", on);
  logarithmic[index][button.dataset.axis] = on;
  again(charts.filter(chart => +chart.dataset.experiment === index));
}));
document.querySelectorAll("[data-reset]").forEach(button => button.addEventListener("click", () => {
  charts.filter(chart => chart.dataset.experiment === button.dataset.reset && drawn.has(chart)).forEach(chart =>
    Plotly.relayout(chart, { "xaxis.autorange": true, "yaxis.range": span(of(chart).panel, logged(chart).y) }));
}));
document.querySelectorAll("[data-show]").forEach(button => button.addEventListener("click", () => {
  document.getElementById("main").dataset.show = button.dataset.show;
  button.parentElement.querySelectorAll("button").forEach(other => other.setAttribute("aria-pressed", other === button));
}));
