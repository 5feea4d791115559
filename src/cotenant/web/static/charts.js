// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
// Draws the charts of a page with uPlot, and again while the page is live.
"use strict";
(() => {
  const area = document.querySelector("[data-charts]");
  if (!area || typeof uPlot === "undefined") return;
  const plots = new Map();
  let data = null;

  // A canvas needs the colour itself, not the expression that chooses between light and dark.
  function colour(name) {
    const probe = document.createElement("span");
    probe.style.color = "var(" + name + ")";
    area.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }
  function shown(series, value) {
    if (value === null || value === undefined) return "–";
    const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : 2;
    return value.toFixed(digits) + (series.unit && series.unit !== "×" ? " " : "") + series.unit;
  }
  // Round numbers on the axis need the unit in which people think of them.
  function inGib(series) {
    if (!series || series.unit !== "MiB") return series;
    const scaled = (value) => value === null ? null : value / 1024;
    return { ...series, unit: "GiB", limit: scaled(series.limit), lines: series.lines.map(([name, values]) => [name, values.map(scaled)]) };
  }
  function clock(at, seconds) { return new Date(at * 1000).toTimeString().slice(0, seconds ? 8 : 5); }
  function draw(box, series) {
    const old = plots.get(box);
    if (old) old.destroy();
    plots.delete(box);
    box.replaceChildren();
    if (!box.clientWidth) return; // hidden until the job starts
    if (!series || series.at.length < 2) {
      const text = document.createElement("p");
      text.className = "dim";
      text.textContent = "No measurements yet.";
      box.append(text);
      return;
    }
    const lines = series.lines.map(([name, values]) => ({ name, values }));
    if (series.limit !== null) lines.push({ name: series.limit_name, values: series.at.map(() => series.limit), limit: true });
    const colours = ["--line1", "--line2", "--line3", "--line4"].map(colour);
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: box.clientWidth, height: 170,
      cursor: { points: { size: 6 }, y: false },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => { const most = Math.max(high, 0) || 1; return [Math.min(0, low), most * 1.08]; } } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((one) => clock(one, ticks[1] - ticks[0] < 60)) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((one) => shown(series, one)) }],
      series: [{ label: "at", value: (_, at) => at === null ? "–" : clock(at, true) }, ...lines.map((line, i) => ({
        label: line.name, stroke: line.limit ? colour("--dim") : colours[i % 4], width: 1.6,
        dash: line.limit ? [5, 4] : (i % 4 > 1 ? [2, 2] : undefined), points: { show: false }, value: (_, v) => shown(series, v),
      }))],
    };
    plots.set(box, new uPlot(options, [series.at, ...lines.map((line) => line.values)], box));
  }
  function drawAll() {
    for (const box of area.querySelectorAll("[data-chart]")) draw(box, data[box.dataset.chart]);
  }
  async function load() {
    try {
      const answer = await fetch(area.dataset.charts, { cache: "no-store" });
      if (!answer.ok) return;
      data = Object.fromEntries(Object.entries(await answer.json()).map(([name, series]) => [name, inGib(series)]));
    } catch { return; }
    for (const box of area.querySelectorAll("[data-chart]")) {
      const series = data[box.dataset.chart], plot = plots.get(box);
      const lines = series ? series.lines.length + (series.limit !== null ? 1 : 0) : 0;
      if (plot && series && series.at.length > 1 && plot.series.length === lines + 1) {
        const values = series.lines.map((line) => line[1]);
        if (series.limit !== null) values.push(series.at.map(() => series.limit));
        plot.setData([series.at, ...values]);
      } else draw(box, series);
    }
  }
  load();
  let loaded = Date.now();
  document.addEventListener("cotenant-update", () => {
    if (Date.now() - loaded > 1800) { loaded = Date.now(); load(); }
  });
  document.addEventListener("cotenant-theme", () => { if (data) drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (data) drawAll(); });
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { for (const [box, plot] of plots) plot.setSize({ width: box.clientWidth, height: 170 }); }, 100);
  });
})();
