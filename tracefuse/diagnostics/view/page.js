"use strict";
// The page of a view: draws the data in the element #data. Segments are boxes of one graph; an opened segment has the
// graph of its ops inside, so only what is opened is laid out.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const { picture, codes, program, notes, roofline } = data;
const canvas = document.getElementById("canvas"), panel = document.getElementById("panel");
const values = new Map(picture.values.map(value => [value.number, value]));
const ops = new Map(picture.ops.map(op => [op.id, op]));
const opened = new Set(), innerLayouts = new Map();
let boxes = new Map(), view = { x: 0, y: 0, scale: 1 }, chosen = null, tab = "Selection";

const CHARACTER = 7.3, LINE = 15, TALL = 1400, MANY_OPS = 120, MANY_READERS = 2, GAP = 30;

// -- text --------------------------------------------------------------------------------------------------------------

function valueText(number) {
  const v = values.get(number);
  return [v.name, v.label, v.type, v.size, v.where && `(${v.where})`].filter(Boolean).join(" ");
}
function lineText(item) { return item.where ? `${item.where}  ${item.line}` : ""; }
function short(text, most) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }
function bytesText(size) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (size >= scale) return `${(size / scale).toFixed(1)} ${unit}`;
  return `${size} B`;
}
function colour(kind) { return data.colours[kind] || "#BBBBBB"; }

// -- elements ----------------------------------------------------------------------------------------------------------

function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(canvas.namespaceURI, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value); else made.setAttribute(key, value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

// -- layout ------------------------------------------------------------------------------------------------------------

function layOut(nodes, edges, gaps) {
  const graph = new dagre.graphlib.Graph();
  const ranker = nodes.length > MANY_OPS ? "longest-path" : "network-simplex";
  graph.setGraph({ rankdir: "TB", marginx: 8, marginy: 8, ranker, ...gaps });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { width: node.width, height: node.height });
  for (const edge of edges) {
    graph.setEdge(edge.source, edge.target, edge.label ? { width: edge.label.length * 6.8, height: LINE, labelpos: "c" } : {});
  }
  dagre.layout(graph);
  const { width, height } = graph.graph();
  const result = { width, height, nodes: new Map(), edges: [] };
  for (const node of nodes) { const { x, y } = graph.node(node.id); result.nodes.set(node.id, { ...node, x, y }); }
  for (const edge of edges) {
    const route = graph.edge(edge.source, edge.target);
    result.edges.push({ ...edge, points: route.points, x: route.x, y: route.y });
  }
  return result;
}

// A long chain would be one column that no screen can show: it continues at the top of the next column.
function inColumns(layout) {
  if (layout.height < TALL || layout.height < 2.5 * layout.width) return layout;
  const count = Math.ceil(Math.sqrt(layout.height / layout.width / 1.5)), step = layout.width + GAP;
  const high = layout.height / count, column = new Map();
  let bottom = 0;
  for (const node of layout.nodes.values()) {
    const place = Math.min(count - 1, Math.floor(node.y / high));
    column.set(node.id, place);
    node.x += place * step; node.y -= place * high;
    bottom = Math.max(bottom, node.y + node.height / 2);
  }
  const top = Math.min(...[...layout.nodes.values()].map(node => node.y - node.height / 2)) - 8;
  for (const node of layout.nodes.values()) node.y -= top;
  for (const edge of layout.edges) {
    const first = column.get(edge.source), last = column.get(edge.target);
    if (first === last) {
      edge.points = edge.points.map(point => ({ x: point.x + first * step, y: point.y - first * high - top }));
      edge.x += first * step; edge.y -= first * high + top;
    } else {
      const from = layout.nodes.get(edge.source), to = layout.nodes.get(edge.target);
      const middle = last * step - GAP / 2;  // between the columns
      edge.points = [{ x: from.x, y: from.y + from.height / 2 }, { x: middle, y: from.y + from.height / 2 + 4 },
        { x: middle, y: to.y - to.height / 2 - 4 }, { x: to.x, y: to.y - to.height / 2 }];
      edge.label = "";
    }
  }
  layout.width = step * count; layout.height = bottom - top + 12;
  return layout;
}

function opSize(op) {
  const type = op.outputs.length ? values.get(op.outputs[0]).type : "";
  return { id: op.id, width: Math.max(op.op.length, type.length) * CHARACTER + 16, height: 2 * LINE + 8, op, type };
}

function innerLayout(segment) {
  if (!innerLayouts.has(segment.position)) {
    const nodes = segment.ops.map(id => opSize(ops.get(id))), edges = [], producer = new Map();
    const port = (role, number) => {
      const v = values.get(number), text = v.label || v.name;
      return { id: `${segment.position}:${role}:${number}`, port: true, number, text, width: text.length * CHARACTER + 14, height: LINE + 5 };
    };
    for (const number of segment.inputs) { nodes.push(port("in", number)); producer.set(number, `${segment.position}:in:${number}`); }
    for (const id of segment.ops) {
      const seen = new Set();
      for (const number of ops.get(id).inputs) {
        const source = producer.get(number);
        if (source !== undefined && !seen.has(source)) { seen.add(source); edges.push({ source, target: id, values: [number] }); }
      }
      for (const number of ops.get(id).outputs) producer.set(number, id);
    }
    for (const number of segment.outputs) {
      const node = port("out", number);
      nodes.push(node);
      if (producer.has(number)) edges.push({ source: producer.get(number), target: node.id, values: [number] });
    }
    innerLayouts.set(segment.position, inColumns(layOut(nodes, edges, { nodesep: 14, ranksep: 20 })));
  }
  return innerLayouts.get(segment.position);
}

// An input with many readers has a box at each, or its edges would cross the graph.
const readers = new Map();
for (const edge of picture.edges) readers.set(edge.source, [...(readers.get(edge.source) || []), edge.target]);
function inputBoxes(number) {
  const id = `input:${number}`, targets = readers.get(id) || [];
  return targets.length > MANY_READERS ? targets.map(target => `${id}@${target}`) : [id];
}
function drawnSource(edge) {
  const many = edge.source.startsWith("input:") && readers.get(edge.source).length > MANY_READERS;
  return many ? `${edge.source}@${edge.target}` : edge.source;
}

function outerBoxes() {
  const result = [];
  const add = (id, lines, fill, kind, extra = {}) => {
    const width = Math.max(...lines.map(line => line.length)) * CHARACTER + 20;
    result.push({ id, lines, fill, kind, width, height: lines.length * LINE + 12, ...extra });
  };
  for (const [role, numbers] of [["input", picture.inputs], ["output", picture.outputs]]) {
    for (const number of new Set(numbers)) {
      const v = values.get(number);
      for (const id of role === "input" ? inputBoxes(number) : [`${role}:${number}`]) {
        add(id, [`${role} ${v.label || v.name}`, v.type], "#FFFFFF", role, { number });
      }
    }
  }
  for (const op of picture.ops) {
    if (op.segment === null && op.outputs.length) add(`host:${op.outputs[0]}`, [op.op, values.get(op.outputs[0]).type], colour(""), "host", { op });
  }
  for (const segment of picture.segments) {
    const names = segment.ops.slice(0, 3).map(id => ops.get(id).op).join(", ");
    const more = segment.ops.length > 3 ? ` + ${segment.ops.length - 3}` : "";
    const lines = [`${segment.position} ${segment.template}`, names + more, segment.size];
    add(`segment:${segment.position}`, lines, colour(segment.kind), "segment", { segment });
    if (opened.has(segment.position)) {
      const inner = innerLayout(segment), box = result[result.length - 1];
      Object.assign(box, { inner, width: Math.max(inner.width, box.width), height: inner.height + LINE + 12 });
    }
  }
  return result;
}

function edgeLabel(edge) {
  if (edge.values.length > 1) return `${edge.values.length} values`;
  const v = values.get(edge.values[0]);
  return edge.source.startsWith("segment") && edge.target.startsWith("segment") ? `${v.name} ${v.type} ${short(v.size, 24)}` : "";
}

// -- drawing -----------------------------------------------------------------------------------------------------------

function edgeShape(edge, dx, dy) {
  const points = edge.points.map(point => `${(point.x + dx).toFixed(1)},${(point.y + dy).toFixed(1)}`);
  const last = edge.points[edge.points.length - 1];
  const reasons = picture.boundaries.filter(b => `segment:${b.first}` === edge.source && `segment:${b.second}` === edge.target);
  const title = [...edge.values.map(valueText), ...edge.values.map(n => lineText(values.get(n))).filter(Boolean),
    ...reasons.map(b => `not one segment: ${b.reason}`)].join("\n");
  const group = shape("g", { class: "edge" }, shape("title", {}, title),
    shape("path", { class: "line", d: `M${points.join("L")}` }),
    shape("path", { class: "tip", d: `M${(last.x + dx).toFixed(1)},${(last.y + dy).toFixed(1)}l-3.5,-7h7z` }),
    shape("path", { class: "reach", d: `M${points.join("L")}` }));
  if (edge.label) {
    const width = edge.label.length * 6.7 + 4;
    group.append(shape("rect", { x: edge.x + dx - width / 2, y: edge.y + dy - 8, width, height: LINE, fill: "#fafafa" }),
      shape("text", { x: edge.x + dx, y: edge.y + dy + 4 }, edge.label));
  }
  group.addEventListener("click", () => { chosen = { edge, reasons }; mark(); show("Selection"); });
  return group;
}

function boxShape(box, x, y, className, label, lines, fill, title) {
  const group = shape("g", { class: className, tabindex: "-1", role: "button", "aria-label": label, "data-id": box.id });
  group.append(shape("title", {}, title), shape("rect", { x: x - box.width / 2, y: y - box.height / 2, width: box.width,
    height: box.height, rx: box.kind === "input" || box.kind === "output" || box.port ? 9 : 3, fill }));
  lines.forEach((line, k) => group.append(shape("text",
    { x, y: y - box.height / 2 + LINE * (k + 0.9) + 2, ...(k === 0 ? { class: "title" } : {}) }, line)));
  group.addEventListener("focus", () => choose(box.id));
  boxes.set(box.id, { ...box, x, y, group });
  return group;
}

function opBox(node, dx, dy, segment) {
  if (node.port) return boxShape(node, node.x + dx, node.y + dy, "op", valueText(node.number), [node.text], "#FFFFFF", valueText(node.number));
  const title = [node.op.text, ...node.op.outputs.map(valueText), lineText(node.op)].join("\n");
  return boxShape({ ...node, segment }, node.x + dx, node.y + dy, "op", `${node.op.text} ${node.op.where}`,
    [node.op.op, node.type], colour(node.op.kind), title);
}

function outerShape(box) {
  const { x, y } = box;
  if (!box.segment) {
    const title = box.op ? [box.op.text, lineText(box.op)].join("\n") : `${valueText(box.number)}\n${lineText(values.get(box.number))}`;
    return [boxShape(box, x, y, "box", box.lines.join(" "), box.lines, box.fill, title)];
  }
  const { segment } = box, lines = [...new Set(segment.ops.map(id => lineText(ops.get(id))).filter(Boolean))];
  const title = [`segment ${segment.position}: ${segment.template}, ${segment.size} moved`, ...lines.slice(0, 24)].join("\n");
  const label = `segment ${segment.position}, ${segment.template}, ${segment.ops.length} ops, ${segment.size}`;
  const group = boxShape(box, x, y, "box", label, box.inner ? [box.lines[0]] : box.lines, box.fill, title);
  group.setAttribute("aria-expanded", String(Boolean(box.inner)));
  group.addEventListener("dblclick", () => toggle(segment.position));
  if (!box.inner) return [group];
  group.querySelector("rect").setAttribute("fill-opacity", "0.35");
  const dx = x - box.inner.width / 2, dy = y - box.height / 2 + LINE + 8;
  const result = [group];
  for (const edge of box.inner.edges) result.push(edgeShape(edge, dx, dy));
  for (const node of box.inner.nodes.values()) result.push(opBox(node, dx, dy, segment));
  return result;
}

function draw() {
  const nodes = outerBoxes(), present = new Set(nodes.map(node => node.id));
  const edges = picture.edges.map(edge => ({ ...edge, source: drawnSource(edge) })).filter(edge => present.has(edge.source) && present.has(edge.target))
    .map(edge => ({ ...edge, label: edgeLabel(edge) }));
  const layout = inColumns(layOut(nodes, edges, { nodesep: 26, ranksep: 22 }));
  boxes = new Map();
  const world = shape("g", { id: "world" });
  for (const edge of layout.edges) world.append(edgeShape(edge, 0, 0));
  for (const node of layout.nodes.values()) world.append(...outerShape(node));
  canvas.replaceChildren(world);
  canvas.dataset.width = layout.width; canvas.dataset.height = layout.height;
  place(); mark();
}

// -- view --------------------------------------------------------------------------------------------------------------

function place() {
  canvas.firstChild.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.scale})`);
}
function fit(width = +canvas.dataset.width, height = +canvas.dataset.height, left = 0, top = 0) {
  const { clientWidth, clientHeight } = canvas;
  const whole = Math.min((clientWidth - 24) / width, (clientHeight - 72) / height, 1.4);
  const scale = whole < 0.45 ? Math.max(whole, Math.min((clientWidth - 24) / width, 0.8)) : whole;  // readable before complete
  view = { scale, x: (clientWidth - width * scale) / 2 - left * scale, y: Math.max(36, (clientHeight - height * scale) / 2) - top * scale };
  place();
}
function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(4, Math.max(0.02, view.scale * factor)), ratio = scale / view.scale;
  view = { scale, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio };
  place();
}
function reveal(box) {
  const { clientWidth, clientHeight } = canvas, x = box.x * view.scale + view.x, y = box.y * view.scale + view.y;
  const half = Math.min(box.width * view.scale / 2, clientWidth / 2 - 10), rise = Math.min(box.height * view.scale / 2, clientHeight / 2 - 40);
  view.x += Math.max(0, half + 8 - x) - Math.max(0, x + half + 8 - clientWidth);
  view.y += Math.max(0, rise + 40 - y) - Math.max(0, y + rise + 30 - clientHeight);
  place();
}

// -- selection ---------------------------------------------------------------------------------------------------------

function mark() {
  for (const [id, box] of boxes) {
    box.group.classList.toggle("chosen", chosen !== null && chosen.id === id);
    box.group.setAttribute("tabindex", "-1");
  }
  const current = (chosen && boxes.get(chosen.id)) || boxes.values().next().value;
  if (current) current.group.setAttribute("tabindex", "0");
}
function choose(id) {
  if (chosen && chosen.id === id) return;
  chosen = { id }; mark(); reveal(boxes.get(id)); show("Selection");
}
function focusBox(id) {
  const box = boxes.get(id);
  if (box) { chosen = null; box.group.focus({ preventScroll: true }); choose(id); }
}
function toggle(position, focus = true) {
  if (opened.has(position)) opened.delete(position); else opened.add(position);
  draw();
  const box = boxes.get(`segment:${position}`);
  if (opened.has(position)) fit(box.width, box.height, box.x - box.width / 2, box.y - box.height / 2); else fit();
  if (focus) focusBox(box.id);
}
function openSegment(position) { if (!opened.has(position)) toggle(position, false); focusBox(`segment:${position}`); }

// The nearest box in a direction; distance across the direction counts twice.
function move(dx, dy) {
  const here = chosen && boxes.get(chosen.id);
  if (!here) { focusBox(boxes.keys().next().value); return; }
  let best = null, least = Infinity;
  for (const box of boxes.values()) {
    const along = (box.x - here.x) * dx + (box.y - here.y) * dy, across = Math.abs((box.x - here.x) * dy + (box.y - here.y) * dx);
    if (box.id === here.id || along <= 2) continue;
    const distance = along + 2 * across;
    if (distance < least) { least = distance; best = box.id; }
  }
  if (best !== null) focusBox(best);
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
canvas.addEventListener("keydown", event => {
  const box = chosen && boxes.get(chosen.id);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in DIRECTIONS) move(...DIRECTIONS[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") fit();
  else if ((event.key === "Enter" || event.key === " ") && box && box.segment) toggle(box.segment.position);
  else return;
  event.preventDefault();
});
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const frame = canvas.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - frame.left, event.clientY - frame.top);
}, { passive: false });
let dragged = null;
canvas.addEventListener("pointerdown", event => { dragged = { x: event.clientX, y: event.clientY, view: { ...view } }; });
window.addEventListener("pointermove", event => {
  if (!dragged || !event.buttons) { dragged = null; return; }
  view.x = dragged.view.x + event.clientX - dragged.x; view.y = dragged.view.y + event.clientY - dragged.y; place();
});

// -- panel -------------------------------------------------------------------------------------------------------------

function pre(text) { return element("pre", { class: "box", tabindex: "0" }, text); }
function list(items) { return items.map(item => element("div", {}, item)); }
function segmentLink(position) {
  return element("button", { class: "link", onclick: () => focusBox(`segment:${position}`) }, `segment ${position}`);
}

// The user's lines beside the kernel; a pressed line marks the statements that compute it.
function besideKernel(segment, kernel) {
  const rows = kernel.split("\n").map(text => element("span", {}, text));
  let owner = "";
  const owners = kernel.split("\n").map(text => {
    const comment = text.match(/^\s*# (\S+:\d+)/);
    if (comment) owner = comment[1];
    return owner;
  });
  const lines = new Map(segment.ops.map(id => ops.get(id)).filter(op => op.where).map(op => [op.where, op.line]));
  const buttons = [...lines].map(([where, line]) => {
    const button = element("button", { "aria-pressed": "false" }, element("b", {}, `${where}  `), line);
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button && pressed));
      rows.forEach((row, k) => row.classList.toggle("lit", pressed && owners[k] === where));
      const first = rows.find(row => row.classList.contains("lit"));
      if (first) first.scrollIntoView({ block: "nearest" });
    });
    return button;
  });
  return element("div", { class: "beside" }, element("div", { class: "lines" }, ...buttons),
    element("div", { class: "code", tabindex: "0" }, ...rows));
}

// What each template offers: its launches and the least that it moves, or why it does not support the segment.
function candidateTable(candidates) {
  const rows = candidates.map(one => element("tr", one.is_chosen ? { class: "here" } : {},
    element("td", {}, one.template + (one.is_chosen ? " (chosen)" : "")),
    element("td", { class: "size" }, one.refusal ? "" : boundText(one.least_bytes)),
    element("td", {}, one.refusal || one.launches.join("; "))));
  const head = element("tr", {}, ...["template", "at least", "launches, or why not"].map(text => element("th", {}, text)));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
}
function boundText(bytes) {
  return roofline ? `${bytesText(bytes)}, ${timeText(1e3 * bytes / roofline.copy_rate)}` : bytesText(bytes);
}

function segmentPanel(segment) {
  const code = codes[segment.position];
  const reasons = picture.boundaries.filter(b => b.first === segment.position || b.second === segment.position);
  const result = [element("h2", {}, `Segment ${segment.position}: ${segment.template}`),
    element("p", {}, `${segment.ops.length} ops, ${segment.size} read and written `,
      element("button", { onclick: () => toggle(segment.position) }, opened.has(segment.position) ? "Fold" : "Open")),
    element("h3", {}, "Reads"), ...list(segment.inputs.map(valueText)),
    element("h3", {}, "Writes"), ...list(segment.outputs.map(valueText))];
  if (reasons.length) {
    result.push(element("h3", {}, "Why it is separate"), ...reasons.map(b => element("div", {}, "from ",
      segmentLink(b.first === segment.position ? b.second : b.first), `: ${b.reason}`)));
  }
  if (code) {
    result.push(element("h3", {}, "Your lines and the kernel"), besideKernel(segment, code.kernel));
    if (code.candidates.length) result.push(element("h3", {}, "Candidate schedules"), candidateTable(code.candidates));
    result.push(element("details", {}, element("summary", {}, "Source of the kernel"), pre(code.source)));
  }
  return result;
}

function opPanel(op) {
  return [element("h2", {}, op.op), pre(op.text), element("h3", {}, "Reads"), ...list(op.inputs.map(valueText)),
    element("h3", {}, "Results"), ...list(op.outputs.map(valueText)),
    ...(op.where ? [element("h3", {}, "Your line"), pre(lineText(op))] : []),
    ...(op.segment === null ? [element("p", {}, "Computed on the host")] : [element("p", {}, "in ", segmentLink(op.segment))])];
}

function valuePanel(number) {
  const v = values.get(number);
  const readers = picture.ops.filter(op => op.inputs.includes(number));
  return [element("h2", {}, valueText(number)), ...(v.where ? [pre(lineText(v))] : []),
    element("h3", {}, "Read by"), ...list(readers.map(op => op.text))];
}

function selectionPanel() {
  if (chosen && chosen.edge) {
    const { edge, reasons } = chosen;
    return [element("h2", {}, `${edge.source} to ${edge.target}`), ...edge.values.flatMap(valuePanel),
      ...(reasons.length ? [element("h3", {}, "Why these are two segments"), ...list(reasons.map(b => b.reason))] : [])];
  }
  const box = chosen && boxes.get(chosen.id);
  if (!box) return [element("p", {}, "Choose a box or an edge of the graph.")];
  if (box.op) return opPanel(box.op);
  if (box.number !== undefined) return valuePanel(box.number);
  return segmentPanel(box.segment);
}

function programPanel() {
  if (!program.length) return [element("p", {}, "The host program depends on sizes: give inputs to view.")];
  const peak = Math.max(1, ...program.map(step => step.live));
  const here = chosen && boxes.get(chosen.id), position = here && here.segment ? here.segment.position : null;
  const rows = program.map((step, k) => {
    const fill = step.segment === null ? "#BBBBBB" : colour(picture.segments[step.segment].kind);
    const text = step.segment === null ? step.text : element("button", { class: "link", onclick: () => focusBox(`segment:${step.segment}`) }, step.text);
    const bar = element("i", { style: `width:${(100 * step.live / peak).toFixed(1)}%;background:${fill}` });
    return element("tr", position !== null && step.segment === position ? { class: "here" } : {}, element("td", {}, String(k)),
      element("td", {}, text), element("td", { class: "size" }, bytesText(step.live)), element("td", { class: "live" }, bar));
  });
  const head = element("tr", {}, ...["", "instruction", "live", `memory, up to ${bytesText(peak)}`].map(text => element("th", {}, text)));
  return [element("h2", {}, "Host program and live memory"), element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))];
}

function boundaryPanel() {
  if (!picture.boundaries.length) return [element("p", {}, "No two segments share a value.")];
  return [element("h2", {}, "Why the segments are separate"), ...picture.boundaries.map(b =>
    element("p", {}, segmentLink(b.first), " and ", segmentLink(b.second), `: ${b.reason}`))];
}

function notesPanel() {
  const shown = notes.filter(([, lines]) => lines.length);
  if (!shown.length) return [element("p", {}, "The plan has no guards.")];
  return shown.flatMap(([title, lines]) => [element("h3", {}, title), pre(lines.join("\n"))]);
}

// -- roofline ----------------------------------------------------------------------------------------------------------

function timeText(milliseconds) { return milliseconds >= 1 ? `${milliseconds.toFixed(2)} ms` : `${(1e3 * milliseconds).toFixed(1)} us`; }
function leastTime(one) { return 1e3 * Math.max(one.bytes / roofline.copy_rate, one.operations / roofline.product_rate); }

// Speed over operations for each byte, both logarithmic. Segments without operations are at the left edge.
function rooflinePlot(measured) {
  const width = 460, height = 300, left = 56, bottom = 34, decades = [-2, 3];
  const top = Math.ceil(Math.log10(roofline.product_rate)) + 0.2, low = top - 6;
  const x = density => left + (Math.max(decades[0], Math.min(decades[1], Math.log10(density || 1e-9))) - decades[0]) / (decades[1] - decades[0]) * (width - left - 12);
  const y = speed => height - bottom - (Math.max(low, Math.log10(speed || 1)) - low) / (top - low) * (height - bottom - 12);
  const plot = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img",
    "aria-label": "speed of each segment over its operations for each byte, below the limits of the device" });
  for (let decade = decades[0]; decade <= decades[1]; decade++) plot.append(shape("text", { x: x(10 ** decade), y: height - 18 }, String(10 ** decade)));
  for (let decade = Math.ceil(low); decade <= top; decade++) plot.append(shape("text", { x: left - 26, y: y(10 ** decade) + 4 }, rateText(10 ** decade)));
  plot.append(shape("text", { x: width / 2, y: height - 3 }, "operations for each byte"));
  const corner = roofline.product_rate / roofline.copy_rate;
  plot.append(shape("path", { class: "roof", d: `M${x(10 ** decades[0])},${y(10 ** decades[0] * roofline.copy_rate)}L${x(corner)},${y(roofline.product_rate)}L${width - 12},${y(roofline.product_rate)}` }));
  measured.forEach((one, k) => {
    const density = one.operations / Math.max(1, one.bytes), speed = Math.max(one.operations, 10 ** decades[0] * one.bytes) / one.time_ms * 1e3;
    const dot = shape("g", {}, shape("title", {}, `segment ${one.name}: ${timeText(one.time_ms)}`),
      shape("circle", { cx: x(density), cy: y(speed), r: 7, fill: colour(picture.segments[k].kind) }),
      shape("text", { x: x(density), y: y(speed) + 4 }, String(k)));
    dot.addEventListener("click", () => focusBox(`segment:${k}`));
    plot.append(dot);
  });
  return plot;
}
function rateText(rate) { return rate >= 1e12 ? `${rate / 1e12}T` : rate >= 1e9 ? `${rate / 1e9}G` : `${rate / 1e6}M`; }

function rooflinePanel() {
  if (!roofline) return [element("p", {}, "No segment was timed: give timed=True to view.")];
  const measured = roofline.profile.kernel_profiles;
  const rows = measured.map((one, k) => element("tr", {}, element("td", {}, segmentLink(k)), element("td", { class: "size" }, timeText(one.time_ms)),
    element("td", { class: "size" }, bytesText(one.bytes)), element("td", { class: "size" }, (one.operations / Math.max(1, one.bytes)).toFixed(2)),
    element("td", { class: "size" }, timeText(leastTime(one))), element("td", { class: "size" }, (leastTime(one) / one.time_ms).toFixed(2))));
  const head = element("tr", {}, ...["segment", "time", "bytes", "operations a byte", "least time", "fraction"].map(text => element("th", {}, text)));
  return [element("h2", {}, "Segments below the limits of the device"), rooflinePlot(measured),
    element("p", {}, `Measured limits: a copy moves ${bytesText(roofline.copy_rate)} a second, a float32 matrix product computes ` +
      `${(roofline.product_rate / 1e9).toFixed(0)} G operations a second.`),
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))];
}

const TABS = { Selection: selectionPanel, "Time line": programPanel, Roofline: rooflinePanel, "Why separate": boundaryPanel, Guards: notesPanel, Text: () => [pre(data.text)] };
function show(name) {
  tab = name;
  for (const button of document.getElementById("tabs").children) {
    const selected = button.textContent === name;
    button.setAttribute("aria-selected", String(selected)); button.tabIndex = selected ? 0 : -1;
  }
  panel.replaceChildren(...TABS[name]());
}
Object.keys(TABS).forEach((name, k, names) => {
  const button = element("button", { role: "tab", "aria-controls": "panel" }, name);
  button.addEventListener("click", () => show(name));
  button.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = document.getElementById("tabs").children[(k + step + names.length) % names.length];
    show(next.textContent); next.focus();
  });
  document.getElementById("tabs").append(button);
});

// -- start -------------------------------------------------------------------------------------------------------------

function setAll(isOpen) {
  opened.clear();
  if (isOpen) picture.segments.forEach(segment => opened.add(segment.position));
  draw(); fit();
}
document.getElementById("open-all").addEventListener("click", () => setAll(true));
document.getElementById("fold-all").addEventListener("click", () => setAll(false));
document.getElementById("fit").addEventListener("click", () => fit());
document.getElementById("closer").addEventListener("click", () => zoom(1.25));
document.getElementById("farther").addEventListener("click", () => zoom(0.8));
const peak = Math.max(0, ...program.map(step => step.live));
const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
document.getElementById("summary").textContent = [count(picture.ops.length, "op"), count(picture.segments.length, "segment"),
  ...(program.length ? [`peak allocation ${bytesText(peak)}`] : [])].join(" · ");
for (const kind of new Set(picture.segments.map(segment => segment.kind))) {
  document.getElementById("legend").append(element("span", {}, element("i", { style: `background:${colour(kind)}` }), kind));
}
const wanted = decodeURIComponent(location.hash.slice(1));  // #all, or the number of a segment
draw(); fit(); show("Selection");
if (wanted === "all") setAll(true);
else if (picture.segments.some(segment => String(segment.position) === wanted)) openSegment(Number(wanted));
document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
