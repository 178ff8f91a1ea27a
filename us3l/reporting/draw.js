"use strict";
// Elements, charts and tables. Text is always set as text: nothing is ever parsed as HTML.

// Elements

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Numbers

function human(value) {
  const units = ["", " k", " M", " G", " T"];
  let unit = 0;
  for (; Math.abs(value) >= 999.5 && unit < 4; unit++) value /= 1000;
  return `${+value.toPrecision(3)}${units[unit]}`;
}
const KINDS = {
  width: (value) => (typeof value === "string" ? `${value}x` : `${+value.toPrecision(4)}x`),
  percent: (value) => `${value.toFixed(1)} %`,
  count: human,
  step: (value) => Math.round(value).toLocaleString("en"),
  bytes: (value) => `${human(value)}B`.replace(/(\d)B/, "$1 B"),
  ms: (value) => `${+value.toPrecision(3)} ms`,
  number: (value) => `${+value.toPrecision(4)}`,
  text: (value) => value,
};
const show = (kind, value) => (value === null ? "" : KINDS[kind](value));

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, index) => +((first + index) * step).toPrecision(12));
}

// Ticks with their labels, each label once.
function distinct(values, text) {
  const labels = values.map(text);
  return values.map((value, index) => [value, labels[index]]).filter(([, label], index) => labels.indexOf(label) === index);
}

function logTicks(low, high, wanted) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    all.push(...[1, 2, 5].map((factor) => factor * 10 ** power));
  const inside = all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const every = Math.ceil(inside.length / wanted);
  return inside.filter((_, index) => index % every === 0);
}

// Marks: colours repeat after 10 and shapes after 6, so 30 marks differ.

const colour = (index) => `var(--c${index % 10})`;
const SHAPES = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
  (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0z`,
  (r) => `M0,${-1.2 * r}L${1.2 * r},${r}H${-1.2 * r}z`,
  (r) => `M0,${1.2 * r}L${1.2 * r},${-r}H${-1.2 * r}z`,
  (r) => `M${-1.3 * r},${-r / 2}H${-r / 2}V${-1.3 * r}H${r / 2}V${-r / 2}H${1.3 * r}V${r / 2}H${r / 2}V${1.3 * r}H${-r / 2}V${r / 2}H${-1.3 * r}z`,
];
const mark = (index, x, y, r, attributes = {}) =>
  s("path", { d: SHAPES[index % SHAPES.length](r), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, fill: colour(index), ...attributes });

const swatch = (index) => s("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(index, 0, 0, 5));

// Lets people look at points by pointer, and by arrow keys when the drawing has the focus.

function explore(element, points, choose) {
  let chosen = -1;
  const to = (index) => {
    chosen = index;
    choose(index < 0 ? null : points[index], index);
  };
  element.onpointermove = element.onpointerdown = (event) => {
    const box = element.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = -1;
    let least = 40 ** 2;
    points.forEach((point, index) => {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < least) [best, least] = [index, distance];
    });
    to(best);
  };
  element.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step && event.key !== "Escape") return;
    event.preventDefault();
    to(step ? (chosen + step + points.length + (chosen < 0 && step < 0)) % points.length : -1);
  };
}

// A chart, drawn anew at the width that it has; `redraw` on the figure follows changed facts.

function chart(spec, extra = {}) {
  const drawing = s("svg", { tabindex: "0", role: "group", "aria-label": `${spec.title}. Arrow keys read its points.` });
  const readout = h("output", { class: "readout", "aria-live": "polite" });
  const legend = h("ul", { class: "legend" });
  const title = h("h4", {}, spec.title);
  const figure = h(
    "figure", { class: "chart" },
    h("figcaption", {}, title, spec.about ? h("div", { class: "small soft" }, spec.about) : null),
    legend, drawing, readout, ...(extra.below || []),
  );
  figure.redraw = (now) => {
    const width = Math.max(220, drawing.clientWidth || 600);
    title.textContent = now.title;
    legend.replaceChildren(
      ...(now.series.length > 1 || now.legend ? now.series.map((one, index) => h("li", {}, swatch(one.mark ?? index), one.name)) : []),
    );
    draw(drawing, readout, now, width);
  };
  new ResizeObserver(() => figure.redraw(extra.latest ? extra.latest() : spec)).observe(drawing);
  return figure;
}

function draw(drawing, readout, spec, width) {
  const height = 250;
  const [left, right, top, bottom] = [46, 14, 10, 42];
  const all = spec.series.flatMap((one) => one.points);
  const [xs, ys] = [all.map((point) => point[0]), all.map((point) => point[1])];
  if (spec.cursor) xs.push(spec.cursor.x);
  const scale = (values, from, to, log, margin, least, range = []) => {
    const f = log ? Math.log : (value) => value;
    let [low, high] = [f(Math.min(...values)), f(Math.max(...values))];
    // A change that is small beside the values must not look large.
    const room = Math.max((high - low) * margin, ((least * Math.max(Math.abs(low), Math.abs(high))) - (high - low)) / 2) || 1;
    [low, high] = [low - room, high + room];
    if (range.length) [low, high] = [Math.min(range[0], low + room), Math.max(range[1], high - room)];
    const back = log ? Math.exp : (value) => value;
    return { at: (value) => from + ((f(value) - low) / (high - low)) * (to - from), low: back(low), high: back(high) };
  };
  const dotted = spec.series.every((one) => one.points.length <= 30);
  const x = scale(xs, left, width - right, spec.x.log, dotted ? 0.05 : 0, 0);
  const y = scale(ys, height - bottom, top, false, 0.12, 0.1, spec.y.range);
  const parts = [];
  const label = ({ kind }) => (value) => (kind === "percent" ? `${+value.toFixed(2)}` : show(kind, value));
  for (const [value, text] of distinct(ticks(y.low, y.high, 5), label(spec.y))) {
    parts.push(s("line", { class: "rule", x1: left, x2: width - right, y1: y.at(value), y2: y.at(value) }));
    parts.push(s("text", { x: left - 8, y: y.at(value) + 4, "text-anchor": "end" }, text));
  }
  const wanted = Math.max(2, Math.floor(width / 95));
  for (const [value, text] of distinct((spec.x.log ? logTicks : ticks)(x.low, x.high, wanted), (one) => show(spec.x.kind, one)))
    if (spec.x.kind !== "step" || Number.isInteger(value))
      parts.push(s("text", { x: x.at(value), y: height - bottom + 18, "text-anchor": "middle" }, text));
  const axis = spec.x.log ? `${spec.x.label} (log scale)` : spec.x.label;
  parts.push(s("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, axis));
  if (spec.cursor) {
    const at = x.at(spec.cursor.x);
    parts.push(s("line", { class: "cursor", x1: at, x2: at, y1: top, y2: height - bottom }));
    parts.push(s("text", { x: at, y: height - bottom - 6, "text-anchor": at > width / 2 ? "end" : "start", dx: at > width / 2 ? -5 : 5 }, spec.cursor.label));
  }
  const points = [], labels = [];
  spec.series.forEach((one, number) => {
    const index = one.mark ?? number;
    const placed = one.points.map((point) => ({ x: x.at(point[0]), y: y.at(point[1]), point, name: one.name }));
    if (one.line !== false)
      parts.push(s("polyline", {
        points: placed.map((point) => `${point.x.toFixed(1)},${point.y.toFixed(1)}`).join(" "),
        fill: "none", stroke: colour(index), "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": index >= 10 ? "6 3" : null,
      }));
    if (dotted) parts.push(...placed.map((point) => mark(index, point.x, point.y, 4)));
    for (const { x: at, y: height, point } of placed) {
      if (!point[2] || placed.length > 12) continue;
      const right = Math.max(at - 6, left + 38), from = right - 7 * point[2].length;
      if (labels.some((other) => from < other.right && right > other.from && Math.abs(height - other.height) < 12)) continue;
      labels.push({ right, from, height }); // those that would hide another are left to the cursor
      parts.push(s("text", { x: right, y: height - 8, "text-anchor": "end" }, point[2]));
    }
    points.push(...placed);
  });
  const ring = s("circle", { class: "ring", r: 8, visibility: "hidden" });
  drawing.setAttribute("height", height);
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.replaceChildren(...parts, ring);
  explore(drawing, points, (point) => {
    ring.setAttribute("visibility", point ? "visible" : "hidden");
    if (!point) return readout.replaceChildren();
    ring.setAttribute("cx", point.x);
    ring.setAttribute("cy", point.y);
    const [a, b, text] = point.point;
    const where = text || `${spec.x.label === "width" ? "" : `${spec.x.label} `}${show(spec.x.kind, a)}`;
    readout.textContent = `${spec.series.length > 1 ? `${point.name}, ` : ""}${where}: ${show(spec.y.kind, b)}${text ? ` at ${show(spec.x.kind, a)}` : ""}`;
  });
}

// Tables that can be copied out: as shown for people, as exact numbers for programs.

const UNITS = { percent: " (%)", bytes: " (bytes)", ms: " (ms)" };

function table(spec) {
  const kinds = spec.columns.map((column) => column.kind);
  const text = (value, kind) => (kind === "percent" && value !== null ? value.toFixed(1) : show(kind, value));
  const cell = (tag, kind, content, scope) => h(tag, { class: kind === "text" ? "text" : null, scope }, content);
  const head = spec.columns.map(({ name, kind }) => cell("th", kind, kind === "percent" ? `${name}, %` : name, "col"));
  const rows = spec.rows.map((row) =>
    h("tr", {}, ...row.map((value, index) => cell(index ? "td" : "th", kinds[index], text(value, kinds[index]), index ? null : "row"))));
  const plain = (value) => (value === null ? "" : String(value).replace(/\s+/g, " "));
  const exact = () =>
    [spec.columns.map(({ name, kind }) => name + (UNITS[kind] || "")), ...spec.rows].map((row) => row.map(plain).join("\t")).join("\n");
  const note = h("span", { class: "small soft", role: "status" });
  const button = h("button", { type: "button", onclick: () => copy(exact(), button, note) }, "Copy the table");
  return h("div", { class: "copied" },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" },
      h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows))),
    button, " ", note);
}

async function copy(text, button, note) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not allowed, or not there: pages opened from a disk have it in some browsers only
    const area = h("textarea", { "aria-label": "the table as text" });
    area.value = text;
    button.after(area);
    area.select();
    done = document.execCommand("copy");
    if (done) area.remove();
  }
  note.textContent = done ? "Copied, separated by tabs." : "Selected: copy it by the keyboard.";
}

function later(summary, make) {
  const details = h("details", {}, h("summary", {}, summary));
  details.addEventListener("toggle", () => details.append(make()), { once: true });
  return details;
}

function series(spec) {
  const x = { name: spec.x.label, kind: spec.x.kind };
  const rows = spec.series.flatMap((one) => one.points.map((point) => [one.name, point[0], point[1]]));
  return { columns: [{ name: "series", kind: "text" }, x, { name: spec.y.label, kind: spec.y.kind }], rows };
}

const withNumbers = (spec) => chart(spec, { below: [later("Numbers", () => table(spec.table || series(spec)))] });
const pairs = (rows) => h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
