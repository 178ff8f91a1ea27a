// The page of a service: images go only to the service that the page came from.

const MOST = 24;
const get = (id) => document.getElementById(id);
const state = { token: "", about: null, images: [], chosen: 0, asked: 0 };
const tile = (label, value, small = "") =>
  h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "small" }, small));

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}), ...(state.token ? { Authorization: `Bearer ${state.token}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) get("login").hidden = false;
  const value = await response.json().catch(() => ({ error: `HTTP ${response.status}` }));
  if (!response.ok) {
    const again = response.headers.get("retry-after");
    throw new Error(value.error + (again ? ` (try again in ${again} s)` : ""));
  }
  return value;
}

function complain(error) {
  get("trouble").hidden = !error;
  get("trouble").textContent = error ? error.message : "";
}

// The model

async function begin() {
  try {
    state.about = await call("/widths");
  } catch (error) {
    get("about").textContent = error.message;
    return;
  }
  get("login").hidden = true;
  const { name, backend, image_size: size, classes } = state.about;
  const widths = allWidths();
  get("title").textContent = name;
  document.title = `${name} on us3l serve`;
  get("about").textContent =
    `${widths.length} widths on ${backend}, images of ${size} pixels, p95 to stay under ${+state.about.target_ms.toPrecision(3)} ms` +
    (classes.length ? `, ${classes.length} classes` : "");
  const slider = get("width");
  slider.max = widths.length - 1;
  slider.value = widths.length - 1;
  get("low").textContent = show("width", widths[0]);
  get("high").textContent = show("width", widths[widths.length - 1]);
  moved();
  watch();
}

// Widths that all that the model does has: a classifier may know fewer than the encoder.
function allWidths() {
  const lists = Object.values(state.about.tasks).map((task) => task.widths);
  const common = lists[0].filter((width) => lists.every((list) => list.includes(width)));
  return common.length ? common : lists[0];
}
const width = () => (get("auto").checked ? null : allWidths()[+get("width").value]);

function moved() {
  get("width").disabled = get("auto").checked;
  get("chosen").textContent = width() === null ? "auto" : show("width", width());
}

// Images

function add(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (!images.length) return complain(new Error("these are not images"));
  state.images.push(...images.map((file) => ({ file, url: URL.createObjectURL(file) })));
  for (const old of state.images.splice(0, Math.max(0, state.images.length - MOST))) URL.revokeObjectURL(old.url);
  state.chosen = state.images.length - 1;
  ask();
}

function drawImages() {
  get("dropped").replaceChildren(...state.images.map(({ file, url }, index) =>
    h("button", { class: "picture", type: "button", title: file.name, "aria-pressed": String(index === state.chosen),
      onclick: () => { state.chosen = index; ask(); } }, h("img", { src: url, alt: file.name }))));
}

async function ask() {
  drawImages();
  if (!state.images.length || !state.about) return;
  const turn = ++state.asked;
  const query = width() === null ? "" : `?width=${width()}`;
  const chosen = state.images[state.chosen];
  const began = performance.now();
  const found = [];
  let facts = null;
  try {
    if (state.about.tasks.predict) {
      const answer = await call(`/predict${query}`, { method: "POST", body: chosen.file, headers: { "Content-Type": chosen.file.type } });
      facts = { answer, took: performance.now() - began, images: 1 };
      found.push(classesOf(answer.predictions[0]));
    }
    if (state.about.tasks.embed) {
      const form = new FormData();
      for (const { file } of state.images) form.append("images", file);
      const sent = performance.now();
      const answer = await call(`/embed${query}`, { method: "POST", body: form });
      facts = facts || { answer, took: performance.now() - sent, images: state.images.length };
      found.push(neighboursOf(answer.embeddings));
    }
  } catch (error) {
    if (turn === state.asked) complain(error);
    return;
  }
  if (turn !== state.asked) return;  // a later question has been asked
  complain(null);
  const { answer, took, images } = facts;
  get("facts").replaceChildren(
    tile("Width", show("width", answer.width), width() === null ? "chosen by the service" : "chosen here"),
    tile("Latency in the service", show("ms", answer.took_ms), images === 1 ? "one image" : `${images} images`),
    tile("Of that, waiting", show("ms", answer.waited_ms), "before its turn came"),
    tile("Seen from here", show("ms", took), "with the network between"),
  );
  get("results").replaceChildren(...found);
}

function classesOf(ranked) {
  return h("div", { class: "card" }, h("h3", {}, "Classes"),
    ...ranked.map(({ class: name, probability }) => {
      const bar = h("span");
      bar.style.width = `${100 * probability}%`;
      return h("div", { class: "rank" }, h("span", {}, name), h("div", { class: "bar" }, bar),
        h("span", { class: "share" }, show("percent", 100 * probability)));
    }));
}

function neighboursOf(rows) {
  const norm = (row) => Math.hypot(...row) || 1;
  const own = rows[state.chosen];
  const near = rows
    .map((row, index) => ({ index, near: row.reduce((sum, value, at) => sum + value * own[at], 0) / norm(row) / norm(own) }))
    .filter(({ index }) => index !== state.chosen)
    .sort((a, b) => b.near - a.near);
  return h("div", { class: "card" }, h("h3", {}, "Nearest of your images"),
    near.length
      ? h("div", { class: "strip" }, ...near.map(({ index, near: value }) =>
        h("span", { class: "neighbour" }, h("img", { src: state.images[index].url, alt: state.images[index].file.name }),
          h("span", { class: "small soft" }, value.toFixed(3)))))
      : h("p", { class: "soft" }, "Drop more images: this shows which of them are most alike to the network, with their cosine similarity."));
}

// The last minutes

const CURVES = [
  { title: "p95 of requests, per image", of: (row) => row.p95_ms, y: { label: "ms", kind: "ms", range: [0, 0] } },
  { title: "Width of requests that name none", of: (row) => row.width, y: { label: "width", kind: "width", range: [0, 1] } },
];

function specs(recent) {
  const target = state.about.target_ms;
  return CURVES.map(({ title, of, y }, number) => {
    const points = recent.rows.filter((row) => of(row) !== null).map((row) => [-row.seconds_ago, of(row)]);
    const line = points.length ? [[points[0][0], target], [Math.max(0, points[points.length - 1][0]), target]] : [];
    const series = [{ name: title, points }, ...(number === 0 && points.length ? [{ name: `target, ${show("ms", target)}`, points: line }] : [])];
    return { title, series, y, x: { label: "seconds", kind: "number" } };
  });
}

let charts = null;
async function watch() {
  try {
    const recent = await call("/recent");
    const last = recent.rows[recent.rows.length - 1];
    const total = (name) => recent.rows.reduce((sum, row) => sum + row[name], 0);
    get("now").replaceChildren(
      tile("Width now", show("width", recent.width), "of requests that name none"),
      tile("p95", last && last.p95_ms !== null ? show("ms", last.p95_ms) : "-", "of the last seconds with requests"),
      tile("Answered", show("count", total("requests")), "in five minutes"),
      tile("Refused", show("count", total("refused")), "in five minutes"),
    );
    if (recent.rows.some((row) => row.p95_ms !== null)) {
      const now = specs(recent);
      if (!charts) {
        charts = now.map((spec, number) => chart(spec, { latest: () => specs(watch.last)[number] }));
        get("curves").replaceChildren(...charts);
      }
      watch.last = recent;
      charts.forEach((figure, number) => figure.redraw(now[number]));
    }
  } catch {  // it may be restarting: the next time will tell
  }
  setTimeout(watch, 2000);
}

// Events

let waiting = 0;
const soon = () => { moved(); clearTimeout(waiting); waiting = setTimeout(ask, 80); };
get("files").addEventListener("change", (event) => { add(event.target.files); event.target.value = ""; });
get("width").addEventListener("input", soon);
get("auto").addEventListener("change", soon);
for (const kind of ["dragover", "dragleave", "drop"])
  get("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    get("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") add(event.dataTransfer.files);
  });
document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) add(event.clipboardData.files); });
get("login").addEventListener("submit", (event) => { event.preventDefault(); state.token = get("token").value; begin(); });
begin();
