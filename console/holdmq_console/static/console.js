// The little script of the console: curves, live views, confirmation, one key. Pages work without it, but for the curves.
"use strict";

const STEP_MS = 2000;
const KEPT = 300;
const ROWS = 100;
const DEEPEST = 40; // levels of JSON that are indented
const LONGEST = 1e6; // characters of JSON that is indented
const LARGEST = 1e300; // of the values in a curve, whose range has to be a number, too

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function plot(element, names) {
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 } };
  const strokes = [colour("--first"), colour("--second")];
  const series = names.map((label, at) => ({ label, stroke: strokes[at % 2], width: 2, points: { show: false } }));
  const options = {
    width: element.clientWidth,
    height: 170,
    series: [{}, ...series],
    axes: [axis, { ...axis, size: 70, values: (_plot, ticks) => ticks.map(short) }],
    cursor: { drag: { x: false, y: false } },
  };
  const made = new uPlot(options, [[], ...names.map(() => [])], element);
  element.querySelector("canvas").setAttribute("aria-hidden", "true");
  new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: 170 })).observe(element);
  return made;
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  }
  return `${+value.toPrecision(3)}`;
}

function startCurves() {
  const elements = [...document.querySelectorAll("[data-curve]")];
  if (!elements.length) return;
  const plots = elements.map((element) => [element.dataset.curve.split(","), plot(element, element.dataset.names.split(",")), element]);
  async function draw() {
    try {
      const answer = await fetch("/api/v1/overview/curves");
      if (answer.status === 401) return location.reload();
      if (!answer.ok) return;
      const { points } = await answer.json();
      for (const [fields, made, element] of plots) {
        made.setData([points.map((one) => one.at), ...fields.map((field) => points.map((one) => one[field]))]);
        element.dataset.drawn = points.length;
      }
    } catch (_error) { /* the console is away; the next turn asks again */ }
  }
  draw();
  setInterval(() => document.hidden || draw(), STEP_MS);
}

function startPoints() {
  for (const element of document.querySelectorAll("[data-points]")) {
    const points = JSON.parse(element.dataset.points);
    plot(element, element.dataset.names.split(",")).setData([points.map((one) => one[0]), points.map((one) => one[1])]);
    element.dataset.drawn = points.length;
  }
}

function firstNumber(value) {
  if (typeof value === "number") return Math.abs(value) < LARGEST ? value : null;
  if (value === null || typeof value !== "object") return null;
  for (const inner of Object.values(value)) {
    const found = firstNumber(inner);
    if (found !== null) return found;
  }
  return null;
}

function parsed(text) {
  try { return JSON.parse(text); } catch (_error) { return undefined; }
}

function shownPayload(payload) {
  if (payload.hidden) {
    const hidden = document.createElement("span");
    hidden.className = "faint";
    hidden.textContent = `${payload.size} bytes, hidden`;
    return hidden;
  }
  const text = payload.text ?? `base64 ${payload.base64}`;
  return folded(text);
}

// The text of a JSON value, indented. Numbers and names stay as they were sent: JSON.stringify would round and drop some.
function indented(text) {
  let depth = 0;
  if (text.length > LONGEST) return text;
  const line = () => (depth <= DEEPEST ? `\n${"  ".repeat(depth)}` : "");
  return text.trim().replace(/"(?:[^"\\]+|\\.)*"|\[\s*\]|\{\s*\}|[[\]{},:]|\s+/g, (part) => {
    if (part[0] === '"') return part;
    if (part.trim() === "") return "";
    if (part.length > 1) return part[0] + part.at(-1);
    if (part === "[" || part === "{") { depth += 1; return part + line(); }
    if (part === "]" || part === "}") { const end = depth <= DEEPEST; depth -= 1; return (end ? line() : "") + part; }
    return part === "," ? part + line() : ": ";
  });
}

// JSON objects and lists are folded: a summary, and the whole when it is opened.
function folded(text) {
  const code = document.createElement("code");
  code.className = "payload";
  const value = parsed(text);
  if (value === null || typeof value !== "object") {
    code.textContent = text;
    return code;
  }
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = text.length > 80 ? `${text.slice(0, 80)} …` : text;
  code.textContent = indented(text);
  details.append(summary, code);
  return details;
}

function startLive() {
  const view = document.querySelector("[data-live]");
  if (!view) return;
  const state = view.querySelector("[data-state]");
  const rate = view.querySelector("[data-rate]");
  const body = view.querySelector("[data-messages]");
  const pause = view.querySelector("[data-pause]");
  const curve = view.querySelector("[data-live-curve]");
  const made = plot(curve, ["value"]);
  const data = [[], []];
  let paused = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Continue" : "Pause";
  });
  const source = new EventSource(view.dataset.live);
  source.addEventListener("open", () => { state.textContent = "live"; });
  source.addEventListener("error", () => { state.textContent = source.readyState === EventSource.CLOSED ? "refused" : "connecting"; });
  source.addEventListener("trouble", (event) => { state.textContent = JSON.parse(event.data).detail; });
  source.addEventListener("rate", (event) => {
    const { messages, shown, complete } = JSON.parse(event.data);
    rate.textContent = `${complete ? "" : "at least "}${messages} messages per second` + (shown < messages ? `, ${shown} shown` : "");
  });
  source.addEventListener("message", (event) => {
    if (paused) return;
    const message = JSON.parse(event.data);
    const row = document.createElement("tr");
    const cells = [new Date(message.published).toLocaleTimeString(), message.topic].map((text) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      return cell;
    });
    const payload = document.createElement("td");
    payload.append(shownPayload(message.payload));
    row.append(...cells, payload);
    body.prepend(row);
    while (body.childElementCount > ROWS) body.lastElementChild.remove();
    const number = firstNumber(parsed(message.payload.text ?? ""));
    if (number === null || number === undefined) return;
    const at = Math.max(Date.now() / 1000, (data[0].at(-1) ?? 0) + 1e-6);
    data[0].push(at);
    data[1].push(number);
    if (data[0].length > KEPT) data.forEach((list) => list.shift());
    made.setData(data);
    curve.dataset.drawn = data[0].length;
  });
  addEventListener("pagehide", () => source.close());
}

function startMessage() {
  for (const code of document.querySelectorAll("[data-json] code.payload")) {
    const value = parsed(code.textContent);
    if (value !== null && typeof value === "object") code.textContent = indented(code.textContent);
  }
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const field = document.querySelector("[data-search]");
  if (field) { event.preventDefault(); field.focus(); }
});

addEventListener("DOMContentLoaded", () => { startCurves(); startPoints(); startLive(); startMessage(); });
