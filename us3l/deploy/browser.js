"use strict";
// The ONNX networks of this folder in a browser: do they give the outputs of the export, and how long do they take?
// Copy from here for a page of your own: `preprocess` and `compute` are all that a network needs.
// It asks for files of its own folder and sends nothing. Names come from files, so they are always set as text.

const TOLERANCE = 1e-4;  // of float outputs, in units of the largest where that is above 1
const MIN_COSINE = 0.98;  // of INT8 outputs: processors round their sums in different ways
const [FEWEST, SECONDS, TICK] = [10, 0.5, 5];  // looks at the clock, for this long, with this many milliseconds between two

// From an image to a network's input

// Pillow's bilinear filter, to the bit: in each direction, every output is a weighted mean of inputs, in integers.
const BITS = 22;

function filter(from, to) {
  const scale = from / to, reach = Math.max(scale, 1);
  return Array.from({ length: to }, (_, index) => {
    const centre = (index + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const end = Math.min(from, Math.trunc(centre + reach + 0.5));
    const inverse = 1 / reach;
    const weights = Array.from({ length: end - first }, (_, at) => Math.max(0, 1 - Math.abs((at + first - centre + 0.5) * inverse)));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return { first, weights: Int32Array.from(weights, (weight) => Math.trunc(0.5 + (sum ? weight / sum : weight) * 2 ** BITS)) };
  });
}

// Lines of pixels, each `from` long, of four channels of which the last is left out; the result has rows and columns swapped.
function resizeLines(pixels, from, lines, to) {
  const taps = filter(from, to), resized = new Uint8ClampedArray(to * lines * 4);
  for (let line = 0; line < lines; line++)
    for (let index = 0; index < to; index++) {
      const { first, weights } = taps[index];
      const target = 4 * (index * lines + line);
      for (let channel = 0; channel < 3; channel++) {
        let sum = 1 << (BITS - 1), source = 4 * (line * from + first) + channel;
        for (let at = 0; at < weights.length; at++, source += 4) sum += pixels[source] * weights[at];
        resized[target + channel] = sum >> BITS;
      }
    }
  return resized;
}

// A square of side `from`, in RGBA, at another side.
function resize(pixels, from, to) {
  if (from === to) return pixels;
  return resizeLines(resizeLines(pixels, from, from, to), from, to, to);
}

// The square centre of an image file, upright and on white: its pixels in RGBA, and its side.
async function readSquare(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const side = Math.min(bitmap.width, bitmap.height);
  const [left, top] = [bitmap.width, bitmap.height].map((length) => Math.floor((length - side) / 2));
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, side, side);
  context.drawImage(bitmap, -left, -top);
  bitmap.close();
  return { pixels: context.getImageData(0, 0, side, side).data, side };
}

// As example.py does it: 1 x 3 x size x size.
async function preprocess(file, { size, resize: wanted, mean, std }) {
  const { pixels, side } = await readSquare(file);
  const square = resize(pixels, side, wanted);
  const edge = Math.floor((wanted - size) / 2), input = new Float32Array(3 * size * size);
  const [means, stds] = [mean, std].map((values) => values.map(Math.fround));
  for (let channel = 0; channel < 3; channel++)
    for (let y = 0; y < size; y++)
      for (let x = 0; x < size; x++) {
        const value = Math.fround(square[4 * ((y + edge) * wanted + x + edge) + channel] / 255);
        input[(channel * size + y) * size + x] = Math.fround(value - means[channel]) / stds[channel];
      }
  return new ort.Tensor("float32", input, [1, 3, size, size]);
}

async function compute(session, input) {
  const outputs = await session.run({ [session.inputNames[0]]: input });
  return outputs[session.outputNames[0]].data;
}

// What is in the folder

const state = { manifest: null, networks: [], open: null, picture: null, images: [], chosen: 0, asked: 0, turn: Promise.resolve() };
const get = (id) => document.getElementById(id);

async function load(name) {
  const response = await fetch(name, { cache: "no-cache" }).catch(() => null);
  if (!response || !response.ok) throw new Error(`${name} is not here` + (location.protocol === "file:" ? SERVE : ""));
  return response;
}
const SERVE = ": browsers do not let a page read the files beside it.\nServe this folder, for example by: python -m http.server";
const MISSING =
  "onnxruntime-web is not here. Copy three files of its npm package (dist/) into this folder:\n" +
  "ort.wasm.min.js, ort-wasm-simd-threaded.mjs, ort-wasm-simd-threaded.wasm";

const fileOf = (entry) => Object.keys(entry.files)[0];
const groupOf = (entry) => [entry.head || "features", ...(entry.int8 ? ["INT8"] : [])].join(", ");
const nameOf = (entry) => [`${entry.width}x`, ...(entry.head ? [entry.head] : []), ...(entry.int8 ? ["INT8"] : [])].join(", ");
const networksOf = (group) => state.networks.filter((entry) => groupOf(entry) === group);

// One network is held at a time: they may be large.
async function sessionOf(entry) {
  if (state.open && state.open.entry === entry) return state.open.session;
  if (state.open) await state.open.session.release();
  state.open = null;
  const bytes = new Uint8Array(await (await load(fileOf(entry))).arrayBuffer());
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] }).catch((error) => {
    throw new Error(error.message.includes("no available backend") ? MISSING : `${fileOf(entry)} cannot be run: ${error.message}`);
  });
  state.open = { entry, session };
  return session;
}

// One thing after another: a network that is timed must be alone.
function inTurn(work) {
  const done = state.turn.then(work);
  state.turn = done.catch(() => null);
  return done;
}

function complain(error) {
  get("trouble").hidden = !error;
  get("trouble").textContent = error ? error.message : "";
}

// Checking and timing

const cosine = (a, b) => {
  const dot = (u, v) => u.reduce((sum, value, at) => sum + value * v[at], 0);
  return dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
};

// Whether the outputs are those of the export; null where the manifest does not know these.
function check(entry, found) {
  if (!entry.reference) return { good: null, text: "unknown" };
  const expected = new Float32Array(Uint8Array.from(atob(entry.reference), (letter) => letter.charCodeAt(0)).buffer);
  if (entry.int8) {
    const value = cosine(found, expected);
    return { good: value >= MIN_COSINE, text: `cosine ${value.toFixed(4)}` };
  }
  const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
  const worst = expected.reduce((most, value, at) => Math.max(most, Math.abs(value - found[at])), 0) / largest;
  return { good: found.length === expected.length && worst <= TOLERANCE, text: `differ by ${worst.toExponential(0)}` };
}

// Sorted milliseconds per call. Browsers translate code again once it has run for a while, so that the first calls are slow;
// and their clocks are coarse, so that fast networks are called several times per look at the clock.
async function time(session, input) {
  const run = async (calls) => {
    const started = performance.now();
    for (let call = 0; call < calls; call++) await compute(session, input);
    return (performance.now() - started) / calls;
  };
  const repeat = async (calls) => {
    const found = [], until = performance.now() + 1000 * SECONDS;
    while (found.length < FEWEST || performance.now() < until) found.push(await run(calls));
    return found.sort((a, b) => a - b);
  };
  const warm = quantile(await repeat(1), 0.5);
  return repeat(Math.ceil(TICK / Math.max(TICK / 100, warm)));
}
const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

async function measureOne(entry) {
  const session = await sessionOf(entry), input = await preprocess(state.picture, state.manifest.preprocessing);
  entry.checked = check(entry, await compute(session, input));
  const times = await time(session, input);
  entry.p50 = quantile(times, 0.5);
  entry.p95 = quantile(times, 0.95);
  drawRows();
}

async function measure() {
  get("again").disabled = get("save").disabled = true;
  for (const entry of state.networks) {
    get("about").textContent = `${described()} Checking and timing ${nameOf(entry)} ...`;
    await inTurn(() => measureOne(entry));  // between two networks, questions about images get their turn
  }
  const wrong = state.networks.filter((entry) => entry.checked.good === false);
  const all = state.networks.every((entry) => entry.checked.good);
  get("about").textContent = described() + (all ? " All give the outputs of the export." : "");
  if (wrong.length)
    complain(new Error(`Not the outputs of the export: ${wrong.map(nameOf).join(", ")}. A file may be damaged, or this browser ` +
      "changes the pixels that pages read, as some do for privacy."));
  get("again").disabled = get("save").disabled = false;
}

const described = () =>
  `${state.networks.length} ONNX networks of ${state.manifest.name}, images of ${state.manifest.preprocessing.size} pixels, ` +
  `onnxruntime-web ${ort.env.versions.web}.`;

function made(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = name;
  return element;
}

function drawRows() {
  const longest = Math.max(...state.networks.map((entry) => entry.p50 || 0));
  get("rows").replaceChildren(...state.networks.map((entry) => {
    const row = made("tr"), { good, text } = entry.checked || { good: null, text: "" };
    const latency = made("td", entry.p50 ? entry.p50.toPrecision(3) : "", "time");
    if (entry.p50) latency.append(Object.assign(made("span", "", "bar"), { style: `width: ${(100 * entry.p50) / longest}%` }));
    row.append(made("td", nameOf(entry)), latency, made("td", entry.p95 ? entry.p95.toPrecision(3) : ""),
      made("td", (good === null ? "" : good ? "\u2713 " : "\u2717 ") + text, good === null ? "" : good ? "good" : "bad"),
      made("td", (entry.bytes / 1e6).toPrecision(3), "size"));
    return row;
  }));
}

// The table that `us3l profile --device-profile` reads: encoders, or classifiers where there are no encoders.
function table() {
  const encoders = state.networks.filter((entry) => entry.head === null);
  const seen = new Set(), lines = ["width,backend,batch,p50_ms,p95_ms"];
  for (const entry of encoders.length ? encoders : state.networks) {
    const key = `${entry.width},onnx${entry.int8 ? "-int8" : ""},1`;
    if (!seen.has(key)) lines.push(`${key},${entry.p50.toFixed(4)},${entry.p95.toFixed(4)}`);
    seen.add(key);
  }
  return `${lines.join("\n")}\n`;
}

function save() {
  const link = made("a");
  link.href = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
  link.download = "latencies.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}

// The images of whoever looks at the page

const MOST = 24;
const network = () => networksOf(get("group").value)[+get("width").value];

function add(files) {
  state.images.push(...[...files].map((file) => ({ file, url: URL.createObjectURL(file), outputs: new Map() })));
  for (const old of state.images.splice(0, Math.max(0, state.images.length - MOST))) URL.revokeObjectURL(old.url);
  state.chosen = state.images.length - 1;
  ask();
}

function ask() {
  get("chosen").textContent = `${network().width}x`;
  const asked = ++state.asked;
  inTurn(async () => {
    if (asked !== state.asked || !state.images.length) return;  // a later question waits
    complain(null);
    const entry = network(), session = await sessionOf(entry);
    let [prepared, computed] = [0, 0];
    for (const image of [...state.images]) {
      if (image.outputs.has(entry)) continue;
      const started = performance.now();
      const input = await preprocess(image.file, state.manifest.preprocessing).catch(() => null);
      if (!input) {
        state.images = state.images.filter((other) => other !== image);
        state.chosen = Math.max(0, state.images.length - 1);
        complain(new Error(`${image.file.name} is not an image that this browser reads`));
        continue;
      }
      prepared = performance.now() - started;
      image.outputs.set(entry, await compute(session, input));
      computed = performance.now() - started - prepared;
    }
    if (computed) get("took").textContent = `Reading the last image took ${prepared.toFixed(1)} ms, the network ${computed.toFixed(1)} ms.`;
    draw(entry);
  }).catch(complain);
}

function pictures(images, caption) {
  return images.map((image) => {
    const button = made("button"), picture = made("img");
    Object.assign(picture, { src: image.url, alt: image.file.name });
    button.title = image.file.name;
    button.append(picture, made("span", caption(image), "small soft"));
    button.addEventListener("click", () => { state.chosen = state.images.indexOf(image); ask(); });
    return button;
  });
}

function draw(entry) {
  const own = state.images[state.chosen];
  const buttons = pictures(state.images, () => "");
  buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === state.chosen)));
  get("images").replaceChildren(...buttons);
  if (!own) return get("answer").replaceChildren();
  const outputs = own.outputs.get(entry);
  get("answer").replaceChildren(...(entry.classes ? classes(entry, outputs) : neighbours(entry, own, outputs)));
}

function classes(entry, outputs) {
  const top = Math.max(...outputs), shares = Array.from(outputs, (value) => Math.exp(value - top));
  const sum = shares.reduce((total, share) => total + share, 0);
  const list = made("ol");
  list.append(...entry.classes.map((name, index) => [name, shares[index] / sum]).sort((a, b) => b[1] - a[1]).slice(0, 5)
    .map(([name, share]) => made("li", `${name}: ${(100 * share).toFixed(1)} %`)));
  return [made("h2", "Classes"), list];
}

function neighbours(entry, own, outputs) {
  const others = state.images.filter((image) => image !== own)
    .map((image) => ({ image, near: cosine(image.outputs.get(entry), outputs) })).sort((a, b) => b.near - a.near);
  const strip = made("div", "", "strip"), near = new Map(others.map((other) => [other.image, other.near]));
  strip.append(...pictures(others.map((other) => other.image), (image) => near.get(image).toFixed(3)));
  const text = others.length ? "With the cosine of their features." : "Add more images: this shows which of them the network finds most alike.";
  return [made("h2", "Nearest of your images"), made("p", text, "small soft"), strip];
}

// Beginning, and events

function choose() {
  const widths = networksOf(get("group").value);
  get("width").max = widths.length - 1;
  get("width").value = widths.length - 1;
  ask();
}

async function begin() {
  state.manifest = await (await load("manifest.json")).json();
  document.title = `${state.manifest.name} in a browser`;
  get("title").textContent = document.title;
  state.networks = state.manifest.entries.filter((entry) => entry.format === "onnx");
  if (!state.networks.length) throw new Error("There are no ONNX files here: us3l export RUN --widths 0.5 --format onnx");
  if (typeof ort === "undefined") throw new Error(MISSING);
  ort.env.wasm.numThreads = 1;  // more would need headers that few static servers send
  ort.env.wasm.wasmPaths = new URL(".", location.href).href;
  ort.env.logLevel = "error";
  state.picture = await (await load("check.png")).blob();
  const groups = [...new Set(state.networks.map(groupOf))];
  get("group").replaceChildren(...groups.map((group) => made("option", group)));
  get("group").hidden = groups.length === 1;
  drawRows();
  choose();
  await measure();
}

get("again").addEventListener("click", () => measure().catch(complain));
get("save").addEventListener("click", save);
get("files").addEventListener("change", (event) => { add(event.target.files); event.target.value = ""; });
get("group").addEventListener("change", choose);
get("width").addEventListener("input", ask);
for (const kind of ["dragover", "dragleave", "drop"])
  get("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    get("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") add(event.dataTransfer.files);
  });
begin().catch((error) => { complain(error); get("about").textContent = ""; });
