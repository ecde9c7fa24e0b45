// Draws every [data-chart] with uPlot. The table beside it has the same numbers.
"use strict";

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const trimmed = (value, digits) => Number(value.toPrecision(digits));
function short(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (Math.abs(value) >= size) return trimmed(value / size, 3) + unit;
  }
  return String(trimmed(value, 3));
}
const AXIS = {
  usd: (nano) => "$" + short(nano / 1e9),
  count: short,
  tokens: short,
  seconds: (ns) => ns >= 1e9 ? trimmed(ns / 1e9, 3) + " s" : trimmed(ns / 1e6, 3) + " ms",
};
function exact(unit, value) {
  if (value == null) return "–";
  if (unit === "usd") {
    const digits = Math.abs(value) >= 1e9 || value === 0 ? 2 : Math.abs(value) >= 1e5 ? 4 : 9;
    return "$" + (value / 1e9).toLocaleString("en-US", { minimumFractionDigits: Math.min(digits, 4), maximumFractionDigits: digits });
  }
  return unit === "seconds" ? AXIS.seconds(value) : value.toLocaleString("en-US");
}

function colours(series) {
  return series.map((each, i) => css(each.rest ? "--c8" : COLOURS[i % COLOURS.length]));
}

// Sums from the first series up, so that the last one drawn lies in front at the bottom.
function stacked(series) {
  const sums = [];
  series.forEach((each, i) => sums.push(each.values.map((value, k) => (value ?? 0) + (i ? sums[i - 1][k] : 0))));
  return sums;
}

function legend(figure, data, paint) {
  const list = document.createElement("ul");
  list.className = "keys";
  const items = data.series.map((each, i) => {
    const item = document.createElement("li");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 10 10");
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ width: 10, height: 10, rx: 3, fill: paint[i] })) dot.setAttribute(name, value);
    svg.append(dot);
    const value = document.createElement("b");
    item.append(svg, each.name + " ", value);
    list.append(item);
    return value;
  });
  const when = document.createElement("li");
  list.prepend(when);
  const say = (index) => {
    when.textContent = index == null ? "" : data.labels[index];
    when.hidden = index == null;
    items.forEach((item, i) => { item.textContent = index == null ? "" : exact(data.unit, data.series[i].values[index]); });
  };
  say(null);
  list.setAttribute("aria-hidden", "true");
  figure.querySelector(".plot").before(list);
  return { list, say };
}

function bars(data, paint, x, zone) {
  const sums = stacked(data.series);
  const order = data.series.map((_, i) => i).reverse();
  const width = uPlot.paths.bars({ size: [0.72, 56], radius: [0.12, 0], align: 0 });
  return {
    values: [x, ...order.map((i) => sums[i])],
    series: order.map((i) => ({ fill: paint[i], stroke: paint[i], width: 0, paths: width, points: { show: false } })),
  };
}

function lines(data, paint, x) {
  return {
    values: [x, ...data.series.map((each) => each.values.map((value) => value ?? null))],
    series: data.series.map((_, i) => ({
      stroke: paint[i], width: 2, spanGaps: false,
      points: { show: (u) => data.series[i].values.filter((value) => value != null).length < 2 },
    })),
  };
}

function drawn(figure) {
  const plot = figure.querySelector(".plot");
  if (!plot) return null;
  const data = JSON.parse(figure.dataset.chart);
  const paint = colours(data.series);
  const { edges } = data;
  // A bar stands in the middle of its time, whatever its length: days have 23 to 25 hours.
  const x = edges.slice(0, -1).map((at, i) => (at + edges[i + 1]) / 2);
  const shape = data.kind === "lines" ? lines(data, paint, x) : bars(data, paint, x);
  const keys = legend(figure, data, paint);
  const font = `12px ${css("--sans")}`;
  const axis = { stroke: css("--quiet"), font, grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
  const chart = new uPlot({
    width: plot.clientWidth, height: plot.clientHeight,
    tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), data.zone === "UTC" ? "Etc/UTC" : data.zone),
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: data.kind === "lines" } },
    scales: {
      x: { range: [edges[0], edges[edges.length - 1]] },
      y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.06 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 70, size: 42, values: data.interval === "hour"
        ? [[3600, "{HH}:{mm}", "\n{D} {MMM}", null, "\n{D} {MMM}", null, null, null, 1]]
        : [[86400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1]],
        incrs: data.interval === "hour" ? [3600, 7200, 10800, 21600, 43200, 86400] : [86400, 172800, 604800, 1209600, 2419200, 7776000] },
      { ...axis, values: (_, ticks) => ticks.map(AXIS[data.unit]), size: 62, space: 38,
        incrs: data.unit === "count" || data.unit === "tokens" ? [1, 2, 5, 10, 20, 50, ...Array.from({ length: 36 }, (_, i) => [1, 2, 5][i % 3] * 10 ** (2 + Math.floor(i / 3)))] : undefined },
    ],
    series: [{}, ...shape.series],
    hooks: { setCursor: [(u) => keys.say(u.cursor.idx ?? null)] },
  }, shape.values, plot);
  const watch = new ResizeObserver(() => chart.setSize({ width: plot.clientWidth, height: plot.clientHeight }));
  watch.observe(plot);
  return () => { watch.disconnect(); chart.destroy(); keys.list.remove(); };
}

let ends = [];
function drawAll() {
  for (const end of ends) end?.();
  ends = [...document.querySelectorAll("[data-chart]")].map(drawn);
}
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
document.addEventListener("htmx:after:swap", drawAll);
