// Draws every element with data-chart: lines and points with their intervals, in the page's colours.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// uPlot wants one x for all series: the union, in order. A point that shares its x with another
// of its series has an x of its own, so that none is lost.
function aligned(series) {
  const points = [];
  series.forEach((one, s) => one.x.forEach((x, i) => {
    if (x !== null && one.y[i] !== null) points.push([x, s, i]);
  }));
  points.sort((a, b) => a[0] - b[0]);
  const columns = [points.map(p => p[0])];
  series.forEach((one, s) => columns.push(points.map(p => (p[1] === s ? one.y[p[2]] : null))));
  return { columns, points };
}

function intervals(chart, points) {
  return plot => {
    const pen = plot.ctx;
    pen.save();
    pen.lineWidth = devicePixelRatio * 1.5;
    points.forEach(([x, s, i]) => {
      const one = chart.series[s], low = one.low[i], high = one.high[i];
      if (low === null || low === undefined || high === null || high === undefined) return;
      const across = plot.valToPos(x, "x", true), reach = 4 * devicePixelRatio;
      const ends = [low, high].map(v => plot.valToPos(v, "y", true));
      pen.strokeStyle = colour(`--series-${s % 3}`);
      pen.beginPath();
      pen.moveTo(across, ends[0]);
      pen.lineTo(across, ends[1]);
      ends.forEach(y => { pen.moveTo(across - reach, y); pen.lineTo(across + reach, y); });
      pen.stroke();
    });
    pen.restore();
  };
}

// What the points are, written beside them where there are few: a graph of models needs their names.
// A name stands on the side where there is room, below the one that it would lie on.
function names(chart, points) {
  return plot => {
    if (points.length > 12) return;
    const pen = plot.ctx, size = 11 * devicePixelRatio, taken = [];
    const { left, width } = plot.bbox;
    pen.save();
    pen.font = `${size}px system-ui, sans-serif`;
    pen.fillStyle = colour("--soft");
    pen.textAlign = "left";
    const fits = text => pen.measureText(text).width < width / 3;
    points.forEach(([x, s, i]) => {
      const whole = chart.series[s].labels[i];
      if (!whole) return;
      let end = Math.min(whole.length, 60);
      while (end > 1 && !fits(whole.slice(0, end))) end -= 1;
      const name = end < whole.length ? `${whole.slice(0, end)}…` : whole;
      const long = pen.measureText(name).width, gap = 8 * devicePixelRatio;
      const across = plot.valToPos(x, "x", true);
      const from = across + gap + long < left + width ? across + gap : Math.max(left, across - gap - long);
      let down = plot.valToPos(chart.series[s].y[i], "y", true) + gap / 2 + size;
      const isOn = other => Math.abs(other.down - down) < size
        && from < other.from + other.long && other.from < from + long;
      while (taken.some(isOn)) down += size;
      taken.push({ from, down, long });
      pen.fillText(name, from, down);
    });
    pen.restore();
  };
}

function limits(values) {
  let least = Math.min(...values), most = Math.max(...values);
  if (least === most) { least -= Math.abs(least) * 0.1 || 1; most += Math.abs(most) * 0.1 || 1; }
  const room = (most - least) * 0.08;
  return [least - room, most + room];
}

function number(value) {
  return value === null || value === undefined ? "" : String(Number(value.toPrecision(4)));
}

function axis(label) {
  const line = { stroke: colour("--line"), width: 1 };
  return {
    label, stroke: colour("--soft"), grid: line, ticks: line, labelSize: 22, size: 56,
    values: (_, splits) => splits.map(number),
  };
}

function draw(box) {
  const chart = JSON.parse(box.dataset.chart);
  const { columns, points } = aligned(chart.series);
  const heights = points.flatMap(([, s, i]) => {
    const one = chart.series[s];
    return [one.y[i], one.low[i], one.high[i]].filter(v => v !== null && v !== undefined);
  });
  const across = { ...axis(chart.x), size: 40 };
  if (chart.counts) across.incrs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
  const named = {
    label: chart.x,
    value: (plot, value, _, at) => {
      if (at === null || at === undefined) return "";
      const [, s, i] = points[at];
      const label = chart.series[s].labels[i];
      return label ? `${number(value)}: ${label}` : number(value);
    },
  };
  const options = {
    width: Math.max(240, box.clientWidth), height: 300,
    scales: { x: { time: false, range: () => limits(columns[0]) }, y: { range: () => limits(heights) } },
    axes: [across, axis(chart.y)],
    hooks: { draw: [intervals(chart, points), names(chart, points)] },
    series: [named, ...chart.series.map((one, s) => ({
      label: one.name, stroke: colour(`--series-${s % 3}`), width: one.line ? 2 : 0, spanGaps: true,
      paths: one.line ? undefined : () => null, value: (_, value) => number(value),
      points: { show: true, size: 9, fill: colour(`--series-${s % 3}`) },
    }))],
  };
  box.replaceChildren();
  return new uPlot(options, columns, box);
}

function drawAll() {
  document.querySelectorAll("[data-chart]").forEach(draw);
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
