// The page asks /v1/predict and, each second, /v1/status. All that a server or a person wrote is
// shown as text: nothing here makes HTML of a string.

const PREDICT = "/v1/predict";
const STATUS = "/v1/status";
const EVERY_MS = 1000;
const PATIENCE_MS = 5000; // after which a server that says nothing counts as gone
const KEPT = 60; // seconds of the charts
const SHOWN = 10; // classes, before somebody asks for all
const STAGES = { tokenize: "Tokenize", queue: "Queue", infer: "Infer", decode: "Decode" };
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
let models = [];
let key = ""; // in memory only
let latest = 0; // number of the last question: an older answer is not shown over a newer one

// ---------------------------------------------------------------- small things

function made(name, classes = "", text = "") {
  const element = document.createElement(name);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

function ms(value) {
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

function short(value) {
  if (value >= 10000) return `${Math.round(value / 1000)}k`;
  return value >= 100 || Number.isInteger(value) ? `${Math.round(value)}` : value.toFixed(1);
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

// ---------------------------------------------------------------- which model

function chosenModel() {
  return models.find((one) => one.name === $("model").value) ?? models[0];
}

function chosenVersion() {
  const versions = chosenModel()?.versions ?? [];
  return versions.find((one) => one.version === $("version").value) ?? versions.at(-1);
}

function fill(select, values) {
  const wanted = JSON.stringify(values);
  if (select.dataset.values === wanted) return; // it may be open
  const before = select.value;
  select.replaceChildren(...values.map(([value, words]) => new Option(words, value)));
  if (values.some(([value]) => value === before)) select.value = before;
  select.dataset.values = wanted;
}

function showChoices() {
  fill($("model"), models.map((one) => [one.name, one.name]));
  $("model-field").hidden = models.length < 2;
  const versions = chosenModel()?.versions ?? [];
  const newest = versions.at(-1)?.version;
  const named = versions.map((one) => [one.version, one.version]).reverse();
  fill($("version"), [["", `newest (${newest})`], ...named]);
  $("version-field").hidden = versions.length < 2;
  const takes = chosenVersion();
  if (!takes) return;
  const pair = takes.inputs.includes("text_pair");
  $("pair-field").hidden = !pair;
  $("text-label").textContent = pair ? "First text" : "Text";
  $("marks").hidden = !takes.entities;
}

// ---------------------------------------------------------------- ask

async function ask() {
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
    const answer = await response.json();
    const took = performance.now() - start;
    if (number !== latest) return;
    if (response.ok) showAnswer(answer, response.headers.get("Server-Timing"), took);
    else showError(response, answer.error);
  } catch {
    if (number === latest) say("The server cannot be reached. Is it still running?");
  } finally {
    if (number === latest) busy(false);
  }
}

function busy(yes) {
  $("send").setAttribute("aria-busy", yes);
  $("send").textContent = yes ? "Asking…" : "Classify";
}

function say(words) {
  $("error").textContent = words;
  $("error").hidden = !words;
}

function showError(response, message) {
  const wait = response.headers.get("Retry-After");
  switch (response.status) {
    case 401:
      say(key ? "The server does not know this API key." : "This server wants an API key.");
      askForKey();
      return;
    case 429:
      return say(`The server is busy: its queue is full. Try again in ${wait ?? "a few"} s.`);
    case 503:
      return say(`The server cannot answer now: ${message}`);
    case 504:
      return say("The answer took too long.");
    case 500:
      return say("Something broke in the server; its log says what.");
    default:
      return say(`This cannot be answered: ${message.replace(/^input 0: /, "")}`);
  }
}

function askForKey() {
  $("key-field").hidden = false;
  $("key").focus();
}

// ---------------------------------------------------------------- the answer

function showAnswer(answer, timing, took) {
  say("");
  const model = models.find((one) => one.name === answer.model);
  const version = model?.versions.find((one) => one.version === answer.version);
  const [prediction] = answer.predictions;
  const given = prediction.labels ?? (prediction.label === undefined ? [] : [prediction.label]);
  const words = verdict(prediction);
  $("answer").hidden = false;
  $("verdict").replaceChildren(...words.map((one, at) => made(at ? "small" : "span", "", one)));
  $("spoken").textContent = words.join(", ");
  showBars(prediction.scores, new Set(given), version?.thresholds);
  const by = [["model ", answer.model], ["version ", answer.version]];
  if (version) by.push(["engine ", version.engine]);
  $("by").replaceChildren(
    "Answered by ",
    ...by.flatMap(([what, name], at) => [at ? ", " : "", what, made("b", "", name)]),
  );
  showTimes(timing, took);
}

function verdict(prediction) {
  if (prediction.label !== undefined) return [prediction.label, percent(prediction.score)];
  if (prediction.labels === undefined) return [prediction.score.toFixed(4), "the model's number"];
  if (!prediction.labels.length) return ["No label", "no score reaches its threshold"];
  return [prediction.labels.join(", "), count(prediction.labels.length, "label")];
}

function showBars(scores = {}, given, thresholds, all = false) {
  const rows = Object.entries(scores);
  const shown = all ? rows : rows.slice(0, SHOWN);
  $("bars").hidden = !rows.length;
  $("bars").replaceChildren(
    ...shown.map(([label, score]) => bar(label, score, given.has(label), thresholds?.[label])),
  );
  $("more").hidden = shown.length === rows.length;
  $("more").textContent = `Show all ${rows.length} classes`;
  $("more").onclick = () => {
    showBars(scores, given, thresholds, true);
    $("bars").lastElementChild.scrollIntoView({ block: "nearest" });
  };
}

function bar(label, score, given, threshold) {
  const row = made("li", given ? "given" : "");
  const track = made("div", "track");
  const filled = made("div", "fill");
  filled.style.width = `${Math.min(1, Math.max(0, score)) * 100}%`;
  track.append(filled);
  let said = percent(score);
  if (threshold !== undefined) {
    const mark = made("div", "threshold");
    mark.style.left = `${threshold * 100}%`;
    track.append(mark);
    said += ` ${given ? "≥" : "<"} ${percent(threshold)}`;
  }
  row.append(made("span", "name", given ? `✓ ${label}` : label), made("span", "score", said), track);
  return row;
}

function stagesOf(timing) {
  const found = [];
  for (const part of (timing ?? "").split(",")) {
    const [, name, value] = /^\s*(\w+);dur=([\d.]+)/.exec(part) ?? [];
    if (name in STAGES) found.push([name, STAGES[name], Number(value)]);
  }
  return found;
}

function showTimes(timing, took) {
  const stages = stagesOf(timing);
  const rest = took - stages.reduce((sum, [, , value]) => sum + value, 0);
  const parts = [...stages, ["rest", "HTTP", Math.max(0, rest)]];
  $("stack").replaceChildren(
    ...parts.map(([name, , value]) => {
      const block = made("div");
      block.dataset.part = name;
      block.style.flexGrow = value;
      return block;
    }),
  );
  $("legend").replaceChildren(
    ...parts.map((part) => entry(...part)),
    entry("whole", "Round trip", took),
  );
}

function entry(name, words, value) {
  const row = made("div", name === "whole" ? "whole" : "");
  row.dataset.part = name;
  row.append(made("span", "swatch"), made("dt", "", words), made("dd", "", ms(value)));
  return row;
}

// ---------------------------------------------------------------- charts

class Chart {
  constructor(id, lines, unit) {
    this.figure = $(id);
    this.unit = unit;
    this.points = []; // of each second the value of each line, null where there is none
    this.plot = made("div", "plot");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.top = made("span", "top");
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
    this.points = [...this.points, values].slice(-KEPT);
    const said = parts.map((words, line) => made("span", this.lines.length > 1 ? `of-${line}` : "", words));
    this.figure.querySelector("output").replaceChildren(...said);
    const words = parts.join(", ");
    const top = ceiling(Math.max(0, ...this.points.flat()));
    this.top.textContent = this.unit(top);
    this.lines.forEach((path, line) => path.setAttribute("d", this.drawn(line, top)));
    this.area.setAttribute("d", this.under(top));
    const name = this.figure.querySelector("figcaption span").textContent;
    this.svg.setAttribute("aria-label", `${name} in the last minute; now ${words}`);
  }

  at(index, value, top) {
    return `${KEPT - this.points.length + index},${(100 - (value / top) * 94).toFixed(2)}`;
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
    return `M${KEPT - this.points.length},100L${steps.join("L")}L${KEPT - 1},100Z`;
  }
}

function ceiling(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

const charts = {
  throughput: new Chart("throughput", [""], (top) => `${short(top)} texts/s`),
  latency: new Chart("latency", ["", "second"], (top) => `${short(top)} ms`),
  queue: new Chart("queue", [""], (top) => count(top, "request")),
};

function showCharts(status) {
  const { texts_per_s: texts, requests_per_s: requests, p50_ms: p50, p99_ms: p99 } = status.recent;
  charts.throughput.add([texts], `${short(texts)} texts/s, ${short(requests)} requests/s`);
  const idle = p50 === null;
  charts.latency.add([p50, p99], `p50 ${idle ? "–" : ms(p50)}`, `p99 ${idle ? "–" : ms(p99)}`);
  const loads = status.models.flatMap((one) => one.versions.map((version) => version.load));
  const waiting = loads.reduce((sum, load) => sum + load.waiting_requests, 0);
  const tokens = loads.reduce((sum, load) => sum + load.waiting_tokens, 0);
  charts.queue.add([waiting], `${count(waiting, "request")}, ${count(tokens, "token")} wait`);
}

function showModels() {
  const rows = models.flatMap((model) =>
    model.versions.map((one) => {
      const row = made("li");
      const name = made("p");
      name.append(made("b", "", model.name), ` ${one.version}`);
      const engines = one.load.engines === 1 ? "" : `${one.load.engines} × `;
      const ready = one.ready ? "" : "not ready, ";
      const texts = count(one.totals.texts, "text");
      const refused = Object.values(one.load.refused).reduce((sum, each) => sum + each, 0);
      const lost = refused ? `, ${count(refused, "request")} refused or given up` : "";
      row.append(name, made("p", "", `${ready}${engines}${one.engine}; ${texts} answered${lost}`));
      return row;
    }),
  );
  $("models").replaceChildren(...rows);
}

// ---------------------------------------------------------------- each second

function showState(state, words) {
  $("state").dataset.state = state;
  if ($("state-words").textContent !== words) $("state-words").textContent = words;
}

async function look() {
  try {
    const response = await fetch(STATUS, {
      headers: headers(),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (response.status === 401) {
      showState("waiting", "wants an API key");
      if ($("key-field").hidden) askForKey();
      return;
    }
    if (!response.ok) throw new Error(response.statusText);
    const status = await response.json();
    models = status.models.filter((one) => one.versions.length);
    const ready = models.length && models.every((one) => one.versions.every((each) => each.ready));
    if (status.stopping) showState("waiting", "stopping");
    else showState(ready ? "ready" : "waiting", ready ? "ready" : "not ready");
    document.title = `${models.map((one) => one.name).join(", ")} – pipework`;
    showChoices();
    showCharts(status);
    showModels();
  } catch {
    showState("gone", "cannot be reached");
  }
}

async function watch() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

// ---------------------------------------------------------------- keys and clicks

function sendOnEnter(event) {
  // While an input method composes (Chinese, Japanese), Enter is its own.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
}

function mark(name) {
  const box = $("text");
  const { selectionStart: start, selectionEnd: end, value } = box;
  box.setRangeText(`<${name}>${value.slice(start, end)}</${name}>`, start, end, "select");
  box.focus();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
for (const id of ["text", "pair", "key"]) $(id).addEventListener("keydown", sendOnEnter);
for (const id of ["model", "version"]) $(id).addEventListener("change", showChoices);
for (const button of document.querySelectorAll("[data-mark]")) {
  button.addEventListener("click", () => mark(button.dataset.mark));
}
$("key").addEventListener("change", () => {
  key = $("key").value;
});
watch();
