// The page calls /v1/predict, and /v1/status once per second. Text from the server or the user is
// only inserted as text, never as HTML.

const PREDICT = "/v1/predict";
const STATUS = "/v1/status";
const EVERY_MS = 1000;
const TIMEOUT_MS = 5000; // after this time without a response the server counts as unreachable
const SECONDS = 60; // width of the charts
const MAX_BARS = 10; // classes shown before a click on "Show all"
const STAGES = { tokenize: "Tokenize", queue: "Queue", infer: "Infer", decode: "Decode" };
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
let models = [];
let key = ""; // kept in memory only
let latest = 0; // number of the last request: responses to older requests are ignored

// ---------------------------------------------------------------- formatting

function element(name, classes = "", text = "") {
  const node = document.createElement(name);
  if (classes) node.className = classes;
  if (text) node.textContent = text;
  return node;
}

export function ms(value) {
  if (value >= 1000) return `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

function short(value) {
  if (value >= 10000) return `${Math.round(value / 1000)}k`;
  return value >= 100 || Number.isInteger(value) ? `${Math.round(value)}` : value.toFixed(1);
}

// A version may be a digest: its start is shown, and its title is complete.
function cut(version) {
  return version.length > 10 ? `${version.slice(0, 8)}…` : version;
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function percent(score) {
  const shown = (score * 100).toFixed(1);
  return score > 0 && shown === "0.0" ? "< 0.1 %" : `${shown} %`;
}

function headers() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// ---------------------------------------------------------------- choice of model and version

function chosenModel() {
  return models.find((model) => model.name === $("model").value) ?? models[0];
}

function chosenVersion() {
  const versions = chosenModel()?.versions ?? [];
  return versions.find((version) => version.version === $("version").value) ?? versions.at(-1);
}

function fill(select, values) {
  const content = JSON.stringify(values);
  if (select.dataset.values === content) return; // do not close an open list
  const before = select.value;
  select.replaceChildren(...values.map(([value, label]) => new Option(label, value)));
  if (values.some(([value]) => value === before)) select.value = before;
  select.dataset.values = content;
}

function showChoices() {
  fill($("model"), models.map((model) => [model.name, model.name]));
  $("model-field").hidden = models.length < 2;
  const versions = chosenModel()?.versions ?? [];
  const newest = versions.at(-1)?.version;
  const options = versions.map(({ version }) => [version, cut(version)]).reverse();
  fill($("version"), [["", `newest (${cut(newest ?? "")})`], ...options]);
  $("version-field").hidden = versions.length < 2;
  const version = chosenVersion();
  if (!version) return;
  const pair = version.inputs.includes("text_pair");
  $("pair-field").hidden = !pair;
  $("text-label").textContent = pair ? "First text" : "Text";
  $("marks").hidden = !version.entities;
  $("ask-head").textContent = `${verb(version)}${version?.kind === "tokens" ? " in" : ""} a ${pair ? "pair" : "text"}`;
  $("send").textContent = verb(version);
}

function verb(version) {
  return { regression: "Score", tokens: "Find spans" }[version?.kind] ?? "Classify";
}

// ---------------------------------------------------------------- request

async function classify() {
  const number = ++latest;
  const version = chosenVersion();
  const input = { text: $("text").value };
  if (version?.inputs.includes("text_pair")) input.text_pair = $("pair").value;
  const body = { inputs: [input] };
  if (models.length > 1) body.model = chosenModel().name;
  if ($("version").value && !$("version-field").hidden) body.version = $("version").value;
  key = $("key").value;
  busy(true);
  try {
    const start = performance.now();
    const response = await fetch(PREDICT, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(body),
    });
    const result = await response.json();
    const elapsed = performance.now() - start;
    if (number !== latest) return;
    if (response.ok) showResult(input.text, result, response.headers.get("Server-Timing"), elapsed);
    else showError(response, result.error);
  } catch {
    if (number === latest) showMessage("The server cannot be reached. Check that it is running.");
  } finally {
    if (number === latest) busy(false);
  }
}

function busy(yes) {
  $("send").setAttribute("aria-busy", yes);
  $("send").textContent = yes ? "Waiting…" : verb(chosenVersion());
}

function showMessage(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

function showError(response, message) {
  const wait = response.headers.get("Retry-After");
  switch (response.status) {
    case 401:
      showMessage(key ? "This API key is not valid." : "This server requires an API key.");
      showKeyField();
      return;
    case 429:
      return showMessage(`The server is busy: its queue is full. Try again in ${wait ?? "a few"} s.`);
    case 503:
      return showMessage(`The server is not ready: ${message}`);
    case 504:
      return showMessage("The request timed out. Try again, or use a shorter text.");
    case 500:
      return showMessage("Internal server error. See the server log for details.");
    default:
      return showMessage(`Invalid request: ${message.replace(/^input 0: /, "")}`);
  }
}

function showKeyField() {
  $("key-field").hidden = false;
  $("key").focus();
}

// ---------------------------------------------------------------- result

function showResult(text, result, timing, elapsed) {
  showMessage("");
  const model = models.find(({ name }) => name === result.model);
  const version = model?.versions.find(({ version: name }) => name === result.version);
  const prediction = joined(result.predictions[0]);
  const predicted = prediction.heads ? prediction.labels : labels(prediction);
  const parts = summary(prediction);
  if (prediction.truncated) parts.push("only a part was read: the text is too long for the model");
  if (prediction.windows > 1) parts.push(`read in ${prediction.windows} windows`);
  $("answer").hidden = false;
  $("prediction").replaceChildren(...parts.map((part, index) => element(index ? "small" : "span", "", part)));
  $("spoken").textContent = parts.join(", ");
  showSpans(text, prediction.spans);
  showBars(prediction.scores, new Set(predicted), version?.thresholds);
  const by = [["model ", result.model], ["version ", cut(result.version)]];
  if (version) by.push(["engine ", version.engine]);
  $("by").replaceChildren(
    version?.kind === "regression" ? "Scored by " : version?.kind === "tokens" ? "Found by " : "Classified by ",
    ...by.flatMap(([kind, name], index) => [index ? ", " : "", kind, element("b", "", name)]),
  );
  showTimes(timing, elapsed);
}

function labels({ label, labels, abstained }) {
  return labels ?? (label === undefined || abstained ? [] : [label]);
}

// The labels, scores and spans of all heads, as those of a single prediction.
function joined(prediction) {
  const heads = Object.entries(prediction.heads ?? {});
  if (!heads.length) return prediction;
  const scores = heads.flatMap(([name, head]) =>
    Object.entries(head.scores ?? {}).map(([label, score]) => [`${name}/${label}`, score]),
  );
  return {
    ...prediction,
    labels: heads.flatMap(([name, head]) => labels(head).map((label) => `${name}/${label}`)),
    scores: Object.fromEntries(scores),
    spans: heads
      .flatMap(([name, head]) => (head.spans ?? []).map((span) => ({ ...span, label: `${name}/${span.label}` })))
      .sort((one, other) => one.start - other.start),
  };
}

function summary(prediction) {
  if (prediction.heads)
    return [Object.entries(prediction.heads).map(([name, head]) => `${name}: ${summary(head)[0]}`).join(", ")];
  if (prediction.abstained)
    return [prediction.label ?? "No label", `the best score, ${percent(prediction.score)}, is too low`];
  if (prediction.spans) return [prediction.spans.length ? count(prediction.spans.length, "span") : "No span"];
  if (prediction.label !== undefined) return [prediction.label, percent(prediction.score)];
  if (prediction.low !== undefined)
    return [prediction.score.toFixed(4), `from ${prediction.low.toFixed(4)} to ${prediction.high.toFixed(4)}`];
  if (prediction.labels === undefined) return [prediction.score.toFixed(4), "predicted value"];
  if (!prediction.labels.length) return ["No label", "no score reaches its threshold"];
  return [prediction.labels.join(", "), count(prediction.labels.length, "label")];
}

function showSpans(text, spans) {
  const points = [...text]; // the server counts code points
  const parts = [];
  let end = 0;
  for (const span of spans ?? []) {
    if (span.start < end) continue; // spans of two heads may overlap
    const mark = element("mark", "", points.slice(span.start, span.end).join(""));
    mark.append(element("small", "", `${span.label} ${percent(span.score)}`));
    parts.push(points.slice(end, span.start).join(""), mark);
    end = span.end;
  }
  $("marked").hidden = !parts.length;
  $("marked").replaceChildren(...parts, points.slice(end).join(""));
}

function showBars(scores = {}, predicted, thresholds, all = false) {
  const rows = Object.entries(scores);
  const shown = all ? rows : rows.slice(0, MAX_BARS);
  $("bars").hidden = !rows.length;
  $("bars").replaceChildren(
    ...shown.map(([label, score]) => bar(label, score, predicted.has(label), thresholds?.[label])),
  );
  $("more").hidden = shown.length === rows.length;
  $("more").textContent = `Show all ${rows.length} classes`;
  $("more").onclick = () => {
    showBars(scores, predicted, thresholds, true);
    $("bars").lastElementChild.scrollIntoView({ block: "nearest" });
  };
}

function bar(label, score, predicted, threshold) {
  const row = element("li", predicted ? "predicted" : "");
  const track = element("div", "track");
  const filled = element("div", "fill");
  filled.style.width = `${Math.min(1, Math.max(0, score)) * 100}%`;
  track.append(filled);
  let text = percent(score);
  if (threshold !== undefined) {
    const mark = element("div", "threshold");
    mark.style.left = `${threshold * 100}%`;
    track.append(mark);
    text += ` ${predicted ? "≥" : "<"} ${percent(threshold)}`;
  }
  row.append(element("span", "name", predicted ? `✓ ${label}` : label), element("span", "score", text), track);
  return row;
}

function stagesOf(timing) {
  const stages = [];
  for (const part of (timing ?? "").split(",")) {
    const [, name, value] = /^\s*(\w+);dur=([\d.]+)/.exec(part) ?? [];
    if (name in STAGES) stages.push([name, STAGES[name], Number(value)]);
  }
  return stages;
}

function showTimes(timing, elapsed) {
  const stages = stagesOf(timing);
  const rest = elapsed - stages.reduce((sum, [, , value]) => sum + value, 0);
  const parts = [...stages, ["rest", "HTTP", Math.max(0, rest)]];
  $("stack").replaceChildren(
    ...parts.map(([name, , value]) => {
      const block = element("div");
      block.dataset.part = name;
      block.style.flexGrow = value;
      return block;
    }),
  );
  $("legend").replaceChildren(
    ...parts.map((part) => entry(...part)),
    entry("whole", "Round trip", elapsed),
  );
}

function entry(name, label, value) {
  const row = element("div", name === "whole" ? "whole" : "");
  row.dataset.part = name;
  row.append(element("span", "swatch"), element("dt", "", label), element("dd", "", ms(value)));
  return row;
}

// ---------------------------------------------------------------- charts

class Chart {
  constructor(id, lines, unit) {
    this.figure = $(id);
    this.unit = unit;
    this.points = []; // per second the value of each line, or null
    this.plot = element("div", "plot");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${SECONDS - 1} 100`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.top = element("span", "top");
    this.area = this.path("area");
    this.lines = lines.map((classes) => this.path(classes));
    this.plot.append(this.svg, this.top);
    this.figure.append(this.plot);
  }

  path(classes) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", classes);
    this.svg.append(path);
    return path;
  }

  add(values, ...parts) {
    this.points = [...this.points, values].slice(-SECONDS);
    const spans = parts.map((part, line) => element("span", this.lines.length > 1 ? `of-${line}` : "", part));
    this.figure.querySelector("output").replaceChildren(...spans);
    const text = parts.join(", ");
    const top = ceiling(Math.max(0, ...this.points.flat()));
    this.top.textContent = this.unit(top);
    this.lines.forEach((path, line) => path.setAttribute("d", this.drawn(line, top)));
    this.area.setAttribute("d", this.under(top));
    const name = this.figure.querySelector("figcaption span").textContent;
    this.svg.setAttribute("aria-label", `${name} in the last minute; now ${text}`);
  }

  at(index, value, top) {
    return `${SECONDS - this.points.length + index},${(100 - (value / top) * 94).toFixed(2)}`;
  }

  drawn(line, top) {
    let pen = "M";
    const steps = this.points.map((values, index) => {
      const value = values[line];
      const step = value === null ? "" : `${pen}${this.at(index, value, top)}`;
      pen = value === null ? "M" : "L";
      return step;
    });
    return steps.join("");
  }

  under(top) {
    if (this.lines.length > 1 || this.points.length < 2) return "";
    const steps = this.points.map(([value], index) => this.at(index, value ?? 0, top));
    return `M${SECONDS - this.points.length},100L${steps.join("L")}L${SECONDS - 1},100Z`;
  }
}

function ceiling(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

const charts = {
  throughput: new Chart("throughput", [""], (top) => `${short(top)} texts/s`),
  latency: new Chart("latency", ["", "second"], (top) => (top >= 1000 ? `${short(top / 1000)} s` : `${short(top)} ms`)),
  queue: new Chart("queue", [""], (top) => count(top, "request")),
};

function showCharts(status) {
  const { texts_per_s: texts, requests_per_s: requests, p50_ms: p50, p99_ms: p99 } = status.recent;
  charts.throughput.add([texts], `${short(texts)} texts/s, ${short(requests)} requests/s`);
  const idle = p50 === null;
  charts.latency.add([p50, p99], `p50 ${idle ? "–" : ms(p50)}`, `p99 ${idle ? "–" : ms(p99)}`);
  const loads = status.models.flatMap((model) => model.versions.map((version) => version.load));
  const waiting = loads.reduce((sum, load) => sum + load.waiting_requests, 0);
  const tokens = loads.reduce((sum, load) => sum + load.waiting_tokens, 0);
  charts.queue.add([waiting], `${count(waiting, "request")}, ${count(tokens, "token")}`);
}

function showModels() {
  const rows = models.flatMap((model) =>
    model.versions.map((version) => {
      const row = element("li");
      const name = element("p");
      name.append(element("b", "", model.name), ` ${cut(version.version)}`);
      name.title = version.version;
      const engines = version.load.engines === 1 ? "" : `${version.load.engines} × `;
      const ready = version.ready ? "" : "not ready, ";
      const texts = count(version.totals.texts, "text");
      const refused = Object.values(version.load.refused).reduce((sum, number) => sum + number, 0);
      const rejected = refused ? `, ${count(refused, "request")} rejected` : "";
      row.append(name, element("p", "", `${ready}${engines}${version.engine}; ${texts} classified${rejected}`));
      return row;
    }),
  );
  $("models").replaceChildren(...rows);
}

// ---------------------------------------------------------------- polling

function showState(state, text) {
  $("state").dataset.state = state;
  if ($("state-words").textContent !== text) $("state-words").textContent = text;
}

async function poll() {
  try {
    const response = await fetch(STATUS, {
      headers: headers(),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (response.status === 401) {
      showState("waiting", "requires an API key");
      if ($("key-field").hidden) showKeyField();
      return;
    }
    if (!response.ok) throw new Error(response.statusText);
    const status = await response.json();
    models = status.models.filter((model) => model.versions.length);
    const ready = models.length && models.every((model) => model.versions.every((version) => version.ready));
    if (status.stopping) showState("waiting", "stopping");
    else showState(ready ? "ready" : "waiting", ready ? "ready" : "not ready");
    document.title = `${models.map((model) => model.name).join(", ")} – pipework`;
    showChoices();
    showCharts(status);
    showModels();
  } catch {
    showState("unreachable", "unreachable");
  }
}

async function pollForever() {
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

// ---------------------------------------------------------------- keyboard and mouse

function sendOnEnter(event) {
  // An input method (Chinese, Japanese) uses Enter while it composes text.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  classify();
}

function mark(name) {
  const box = $("text");
  const { selectionStart: start, selectionEnd: end, value } = box;
  box.setRangeText(`<${name}>${value.slice(start, end)}</${name}>`, start, end, "select");
  box.focus();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
for (const id of ["text", "pair", "key"]) $(id).addEventListener("keydown", sendOnEnter);
for (const id of ["model", "version"]) $(id).addEventListener("change", showChoices);
for (const button of document.querySelectorAll("[data-mark]")) {
  button.addEventListener("click", () => mark(button.dataset.mark));
}
$("key").addEventListener("change", () => {
  key = $("key").value;
});
pollForever();
