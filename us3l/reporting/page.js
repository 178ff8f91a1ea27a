"use strict";
// The report, drawn from the facts in the page.
const report = JSON.parse(document.getElementById("report").textContent);

// Sections

const tile = (label, value, note) =>
  h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "small" }, note));

function summary(run) {
  return [
    run.headlines.length ? h("div", { class: "grid headlines" }, ...run.headlines.map((one) => tile(one.label, one.value, one.note))) : null,
    pairs(run.summary),
  ];
}

function everyWidth(run, selected) {
  if (!run.widths.length) return [h("p", { class: "note" }, run.problem)];
  const last = run.widths.length - 1;
  const name = h("output");
  const input = h("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": "width of the network" });
  const tiles = run.figures.map((figure) => {
    const [value, note, bar] = [h("div", { class: "value" }), h("div", { class: "small" }), h("span")];
    const most = figure.kind === "percent" ? 100 : Math.max(...figure.values.filter((one) => one !== null));
    const update = (index) => {
      const known = figure.values[index];
      value.textContent = known === null ? figure.missing : show(figure.kind, known);
      value.classList.toggle("absent", known === null);
      bar.style.width = `${known === null ? 0 : (100 * known) / most}%`;
      note.textContent = known === null ? nearest(run.widths, figure, index) : ofFull(figure, index, last);
    };
    return { update, element: h("div", { class: "card" }, h("div", { class: "label" }, figure.label), value, note, h("div", { class: "bar" }, bar)) };
  });
  const update = () => {
    const index = +input.value;
    name.textContent = KINDS.width(run.widths[index]);
    input.setAttribute("aria-valuetext", name.textContent);
    tiles.forEach((one) => one.update(index));
    selected.set(index);
  };
  input.addEventListener("input", update);
  update();
  const columns = [{ name: "width", kind: "width" }, ...run.figures.map((figure) => ({ name: figure.label, kind: figure.kind }))];
  const rows = run.widths.map((width, index) => [width, ...run.figures.map((figure) => figure.values[index])]).reverse();
  return [
    h("p", { class: "soft" }, last ? `Each of the ${last + 1} widths is a different network, on the same weights. What was not measured is not guessed.` : "There is one width."),
    h("div", { class: "slider" }, name, last ? input : null,
      ...(last ? [h("span", { class: "small soft" }, KINDS.width(run.widths[0])), h("span", { class: "small soft end" }, KINDS.width(run.widths[last]))] : [])),
    h("div", { class: "grid tiles" }, ...tiles.map((one) => one.element)),
    later("All widths as a table", () => table({ columns, rows })),
  ];
}

function nearest(widths, figure, index) {
  const known = widths.map((_, place) => place).filter((place) => figure.values[place] !== null);
  const best = known.reduce((a, b) => (Math.abs(widths[b] - widths[index]) < Math.abs(widths[a] - widths[index]) ? b : a));
  return `nearest: ${show(figure.kind, figure.values[best])} at ${KINDS.width(widths[best])}`;
}

function ofFull(figure, index, last) {
  const full = figure.values[last];
  if (index === last || full === null) return "";
  const [value, share] = [figure.values[index], (100 * figure.values[index]) / full];
  return figure.kind === "percent" ? `${(value - full).toFixed(1)} points from 1x` : `${share.toPrecision(2)} % of 1x`;
}

function accuracy(run, selected) {
  if (!run.evaluations.length) return [h("p", { class: "note" }, "This run has not been evaluated: us3l evaluate does that, with labelled images.")];
  const parts = [];
  if (run.trade_offs.length) parts.push(tradeOff(run, selected));
  for (const one of run.evaluations) {
    parts.push(h("h4", { class: "table" }, `Evaluation: ${one.name}`), one.about ? h("p", { class: "small soft" }, one.about) : null, table(one.table));
    if (one.classes) parts.push(later("By class", () => table(one.classes)));
  }
  return parts;
}

function tradeOff(run, selected) {
  const options = (name) => [...new Set(run.trade_offs.map((one) => one[name]))];
  const choice = (name, text) => {
    const select = h("select", { onchange: () => figure.redraw(spec()) }, ...options(name).map((index) => h("option", { value: index }, run.figures[index].label)));
    return { select, element: h("label", {}, text, select) };
  };
  const [worth, price] = [choice("accuracy", "accuracy"), choice("cost", "cost")];
  const macs = run.figures.findIndex((figure) => figure.label.startsWith("MACs"));
  price.select.value = macs;
  const spec = () => {
    const found = run.trade_offs.find((one) => one.accuracy === +worth.select.value && one.cost === +price.select.value);
    if (!found) return { ...base(), series: [] };
    const [y, x] = [run.figures[found.accuracy], run.figures[found.cost]];
    const point = (index) => [x.values[index], y.values[index], KINDS.width(run.widths[index])];
    const beaten = run.widths.map((_, index) => index).filter((index) => !found.front.includes(index) && x.values[index] !== null && y.values[index] !== null);
    const series = [{ name: "Pareto front: no width is both cheaper and better", points: found.front.map(point) }];
    if (beaten.length) series.push({ name: "beaten by another width", points: beaten.map(point), line: false });
    const at = x.values[selected.index];
    const cursor = at === null ? null : { x: at, label: KINDS.width(run.widths[selected.index]) };
    return { title: `${y.label}, against ${x.label}`, x: { label: x.label, kind: x.kind, log: true }, y: { label: "top-1 accuracy", kind: "percent" }, series, cursor, legend: true };
  };
  const figure = chart(spec(), { latest: spec });
  selected.watch(() => figure.redraw(spec()));
  return h("div", {}, h("div", { class: "choices" }, worth.element, price.element), figure);
}

function searched(run) {
  return run.searches.flatMap((one) => [h("h4", { class: "table" }, `Search: ${one.name}`), h("p", { class: "soft" }, one.about), withNumbers(one.chart), table(one.table)]);
}

function advice(found) {
  if (!found) return [];
  return [
    h("h4", { class: "table" }, "When can I stop?"),
    h("p", { class: "soft" }, found.text),
    found.command ? h("pre", { tabindex: "0" }, found.command) : null,
  ];
}

function training(run) {
  if (!run.curves.length) return [h("p", { class: "note" }, "No step has been recorded yet.")];
  const usual = run.curves.filter((one) => !one.fold);
  const folded = run.curves.filter((one) => one.fold);
  const grid = (curves) => h("div", { class: "grid charts" }, ...curves.map(withNumbers));
  return [...advice(run.advice), grid(usual), folded.length ? later("More gauges, for research", () => grid(folded)) : null];
}

const fileOf = (gallery, index) => (gallery.files ? gallery.files[index] : "");
const describe = (gallery, index) => [fileOf(gallery, index), gallery.images[index]].filter(Boolean).join(", ");

function thumb(gallery, index, kind = "") {
  const { columns, rows } = gallery.sheet;
  const name = describe(gallery, index);
  const element = h("span", { class: `thumb ${kind}`, role: "img", "aria-label": name || "image", title: name || null });
  const percent = (place, count) => `${count > 1 ? (100 * place) / (count - 1) : 0}%`;
  element.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
  element.style.backgroundPosition = `${percent(index % columns, columns)} ${percent(Math.floor(index / columns), rows)}`;
  return element;
}

function neighbours(gallery) {
  const same = (a, b) => gallery.labelled && gallery.images[a] === gallery.images[b];
  const strip = (query, found, width) => {
    const first = gallery.neighbours[0][gallery.queries.indexOf(query)];
    const notes = [KINDS.width(gallery.widths[width])];
    if (gallery.labelled) notes.push(`${found.filter((one) => same(one, query)).length} of ${found.length} of its class`);
    if (width) notes.push(`${found.filter((one) => first.includes(one)).length} also at 1x`);
    return h("div", {}, h("div", { class: "small soft" }, notes.join(" · ")),
      h("div", { class: "strip" }, ...found.map((one) => thumb(gallery, one, same(one, query) ? "same" : ""))),
      gallery.files ? later("Their files", () => h("ol", { class: "small files" }, ...found.map((one) => h("li", {}, fileOf(gallery, one))))) : null);
  };
  return [
    h("p", { class: "soft" }, `For each image on the left its nearest neighbours among ${gallery.count.toLocaleString("en")} images of ${gallery.data}, by the cosine of their features.${gallery.labelled ? " A frame marks those of the same class." : ""}`),
    h("div", { class: "queries" }, ...gallery.queries.map((query, place) =>
      h("div", { class: "card query" },
        h("div", { class: "asked" }, thumb(gallery, query, "large"), gallery.labelled ? h("div", { class: "small" }, gallery.images[query]) : null,
          gallery.files ? h("div", { class: "small soft file" }, fileOf(gallery, query)) : null),
        h("div", { class: "strips" }, ...gallery.neighbours.map((rows, width) => strip(query, rows[place], width)))))),
  ];
}

function embeddingMap(gallery) {
  const looked = h("div", { class: "looked small soft", "aria-live": "polite" }, "Point at an image, or use the arrow keys in a map.");
  let only = null;
  const maps = gallery.layouts.map((layout, width) => {
    const drawing = s("svg", { tabindex: "0", role: "group", "aria-label": `Map of the images at ${KINDS.width(gallery.widths[width])}. Arrow keys go through them.` });
    return { drawing, layout, ring: s("circle", { class: "ring", r: 8, visibility: "hidden" }), points: [],
      element: h("figure", { class: "chart" }, h("figcaption", {}, h("h4", {}, KINDS.width(gallery.widths[width]))), drawing) };
  });
  const look = (point, index) => {
    for (const map of maps) {
      map.ring.setAttribute("visibility", point ? "visible" : "hidden");
      if (point) ["x", "y"].forEach((axis) => map.ring.setAttribute(`c${axis}`, map.points[index][axis]));
    }
    if (point) looked.replaceChildren(thumb(gallery, gallery.mapped[index], "large"), [gallery.groups[gallery.group_of[index]], fileOf(gallery, gallery.mapped[index])].filter(Boolean).join(", "));
  };
  const redraw = (map) => {
    const side = Math.max(200, map.drawing.clientWidth || 400);
    map.points = map.layout.map(([x, y]) => ({ x: 8 + x * (side - 16), y: 8 + y * (side - 16) }));
    map.drawing.setAttribute("viewBox", `0 0 ${side} ${side}`);
    map.drawing.setAttribute("height", side);
    map.drawing.replaceChildren(...map.points.map((point, index) => {
      const group = gallery.group_of[index];
      return mark(group, point.x, point.y, 3.2, { class: only !== null && only !== group ? "faint" : null });
    }), map.ring);
    explore(map.drawing, map.points, look);
  };
  const buttons = gallery.groups.map((name, group) =>
    h("button", { type: "button", "aria-pressed": "false", onclick: () => {
      only = only === group ? null : group;
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(only === other)));
      maps.forEach(redraw);
    } }, swatch(group), name));
  maps.forEach((map) => new ResizeObserver(() => redraw(map)).observe(map.drawing));
  const some = gallery.groups.length < gallery.all_groups ? ` ${gallery.groups.length} of ${gallery.all_groups} classes are shown.` : "";
  const about = gallery.labelled ? "coloured by class" : "coloured by clusters that k-means found at 1x, for want of labels";
  return [
    h("p", { class: "soft" }, `${gallery.mapped.length} images of ${gallery.data} laid out by t-SNE of their features, ${about}.${some} Only who is near whom means something. Choose a name to see it alone.`),
    h("ul", { class: "legend" }, ...buttons.map((button) => h("li", {}, button))),
    h("div", { class: "grid charts" }, ...maps.map((map) => map.element)),
    looked,
  ];
}

// The page

function selection() {
  const watchers = [];
  return {
    index: 0,
    set(index) { this.index = index; watchers.forEach((watcher) => watcher()); },
    watch(watcher) { watchers.push(watcher); },
  };
}

function sections(run) {
  const selected = selection();
  const gallery = run.gallery;
  const missing = [h("p", { class: "note" }, run.no_gallery)];
  const all = [
    ["Summary", summary(run)],
    ["Every width", everyWidth(run, selected)],
    ["Accuracy and cost", accuracy(run, selected)],
    ...(run.searches.length ? [["Searched sub-networks", searched(run)]] : []),
    ["Training", training(run)],
    ["Nearest neighbours", gallery ? neighbours(gallery) : missing],
    ["Map", gallery ? embeddingMap(gallery) : [h("p", { class: "note" }, run.no_gallery)]],
    ["Configuration", [pairs(run.provenance), h("details", {}, h("summary", {}, "All settings"), h("pre", { tabindex: "0" }, run.config))]],
  ];
  return all.map(([title, parts]) => ({ title, parts }));
}

function differences(runs) {
  const names = [...new Set(runs.flatMap((run) => run.summary.map(([name]) => name)))];
  const rows = names.map((name) => [name, ...runs.map((run) => Object.fromEntries(run.summary)[name] ?? null)]);
  return table({ columns: ["", ...runs.map((run) => run.name)].map((name) => ({ name, kind: "text" })), rows });
}

const links = (items) => h("nav", { "aria-label": "contents" }, h("ul", {}, ...items.map(([id, text]) => h("li", {}, h("a", { href: `#${id}` }, text)))));

function runView(run, number, alone) {
  const made = sections(run).map(({ title, parts }) => ({ title, parts, id: `${title.toLowerCase().replaceAll(" ", "-")}-${number}` }));
  const elements = made.map(({ id, title, parts }) => h("section", { id }, h(alone ? "h2" : "h3", {}, title), ...parts.filter((part) => part !== null)));
  if (run.gallery) elements.forEach((element) => element.style.setProperty("--sheet", `url(${run.gallery.sheet.uri})`));
  const contents = links(made.map(({ id, title }) => [id, title]));
  return { contents, elements };
}

function start() {
  const [header, main] = [document.getElementById("header"), document.getElementById("main")];
  const alone = report.runs.length === 1;
  const views = report.runs.map((run, number) => runView(run, number, alone));
  header.append(h("h1", {}, report.title), h("p", { class: "lead" }, alone ? report.runs[0].lead : `${report.runs.length} runs, compared.`));
  if (alone) {
    header.append(views[0].contents);
    main.append(...views[0].elements);
  } else {
    header.append(links([["compared", "Compared"], ...report.runs.map((run, number) => [`run-${number}`, run.name])]));
    const charts = report.compared.map(withNumbers);
    main.append(h("section", { id: "compared" }, h("h2", {}, "Compared"),
      charts.length ? h("div", { class: "grid charts" }, ...charts) : h("p", { class: "note" }, "The runs have no kind of accuracy on the same data in common."),
      differences(report.runs)));
    report.runs.forEach((run, number) => main.append(
      h("article", { id: `run-${number}` }, h("h2", {}, run.name), h("p", { class: "lead" }, run.lead), views[number].contents, ...views[number].elements)));
  }
  document.getElementById("footer").append("Made by us3l from the files of the run. This page loads nothing from anywhere.");
}

start();
