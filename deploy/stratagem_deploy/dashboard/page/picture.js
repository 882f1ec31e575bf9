// The cluster as a picture: programs above, workers, and servers below.

import { byId, drawn, mark, say } from "./elements.js";
import { Table } from "./tables.js";

const TIERS = {
  program: { least: 112, most: 260, height: 52, gap: 96 },
  worker: { least: 112, most: 260, height: 52, gap: 96 },
  server: { least: 168, most: 260, height: 70, gap: 96 },
};
const FEW = 8; // more nodes than these are drawn smaller
const SMALL = { least: 80, most: 150, height: 44, gap: 8 };
const BETWEEN = 132; // between tiers
const ABOVE = 34; // for waits, which pass above
const LABEL = 80; // links closer to each other have their figures in the table only
const SYMBOLS = { "does not answer": "✕", "holds others up": "▲", waits: "…" };

/** Returns where each node is, and the height of all. */
function layout(nodes, width) {
  const places = new Map();
  let y = ABOVE;
  for (const [tier, sizes] of Object.entries(TIERS)) {
    const mine = nodes.filter((node) => node.tier === tier);
    if (!mine.length) continue;
    const { least, most, height, gap: wide } = mine.length > FEW && tier !== "server" ? SMALL : sizes;
    const tight = Math.min(wide, SMALL.gap);
    const fit = Math.max(1, Math.floor((width + tight) / (Math.min(least, width) + tight)));
    const rows = Math.ceil(mine.length / fit);
    const columns = Math.ceil(mine.length / rows);
    const spare = columns > 1 ? (width - columns * least) / (columns - 1) : wide;
    const gap = Math.max(tight, Math.min(wide, spare));
    const cell = Math.min(most, (width - gap * (columns - 1)) / columns);
    mine.forEach((node, index) => {
      const row = Math.floor(index / columns);
      const inRow = Math.min(columns, mine.length - row * columns);
      const left = (width - inRow * cell - (inRow - 1) * gap) / 2;
      const x = left + (index % columns) * (cell + gap);
      places.set(node.name, { x, y: y + row * (height + gap), width: cell, height });
    });
    y += rows * (height + gap) - gap + BETWEEN;
  }
  return { places, height: Math.max(y - BETWEEN + 4, 1) };
}

/** Returns where the links of each node are along its edge, so that they do not lie on each other. */
function ends(links, places) {
  const found = new Map();
  for (const [mine, other] of [["client", "server"], ["server", "client"]]) {
    const grouped = new Map();
    for (const each of links) grouped.set(each[mine], [...(grouped.get(each[mine]) ?? []), each]);
    for (const [name, some] of grouped) {
      const { x, width } = places.get(name);
      some.sort((a, b) => places.get(a[other]).x - places.get(b[other]).x);
      const room = width / (some.length + 1);
      some.forEach((each, index) => {
        const known = found.get(each) ?? {};
        found.set(each, { ...known, [mine]: x + room * (index + 1), [`${mine}Room`]: room });
      });
    }
  }
  return found;
}

function link(from, to, x1, x2) {
  const down = from.y <= to.y;
  const y1 = down ? from.y + from.height : from.y;
  const y2 = down ? to.y : to.y + to.height;
  const bend = (y2 - y1) / 2;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

/** Returns how wide a link is: one pixel more for ten times as many bytes above a KiB. */
function thickness(rate) {
  return rate > 1024 ? Math.min(6, 1 + Math.log10(rate / 1024)).toFixed(1) : "1";
}

function arch(from, to) {
  const x1 = from.x + from.width / 2;
  const x2 = to.x + to.width / 2;
  const top = Math.min(from.y, to.y) - ABOVE + 6;
  return `M${x1} ${from.y - 1}C${x1} ${top} ${x2} ${top} ${x2} ${to.y - 6}`;
}

function text(x, y, kind, words = "") {
  return drawn("text", { x, y, class: kind }, words);
}

export class Picture {
  #svg = drawn("svg", { role: "img", "aria-labelledby": "picture-title picture-words" });
  #title = drawn("title", { id: "picture-title" }, "Who talks to whom");
  #words = drawn("desc", { id: "picture-words" });
  #drawn = "";
  #nodes = new Map();
  #links = new Map();
  #waits = drawn("g");
  #places = new Map();
  #last = null;
  #table = new Table(byId("picture-table"), "Processes", [
    ["name", "process", "name"], ["does", "does", "words"], ["talks", "talks to", "words"],
    ["state", "state", "words"],
  ], { key: (row) => row.name });

  constructor() {
    byId("drawing").append(this.#svg);
    new ResizeObserver(() => this.#last && this.show(this.#last)).observe(byId("drawing"));
  }

  show(picture) {
    this.#last = picture;
    const width = Math.floor(byId("drawing").clientWidth);
    const names = picture.nodes.map((node) => [node.name, node.tier]);
    const pairs = picture.links.map((each) => [each.client, each.server]);
    const wanted = JSON.stringify([width, names, pairs]);
    if (wanted !== this.#drawn) this.#draw(picture, width);
    this.#drawn = wanted;
    picture.nodes.forEach((node) => this.#update(node));
    picture.links.forEach((each) => this.#flow(each));
    this.#wait(picture.waits);
    this.#tell(picture);
  }

  #draw({ nodes, links }, width) {
    const { places, height } = layout(nodes, width);
    this.#places = places;
    this.#nodes.clear();
    this.#links.clear();
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#svg.setAttribute("height", height);
    const drawable = links.filter(({ client, server }) => places.has(client) && places.has(server));
    const where = ends(drawable, places);
    const lines = drawable.map((each) => this.#line(each, places, where.get(each)));
    const boxes = nodes.map((node) => this.#box(node, places.get(node.name)));
    const labels = lines.map(({ label }) => label);
    this.#svg.replaceChildren(this.#title, this.#words, arrowhead(),
      drawn("g", { class: "links" }, ...lines.map(({ path }) => path)), ...boxes,
      drawn("g", {}, ...labels), this.#waits);
  }

  #line({ client, server }, places, at) {
    const from = places.get(client);
    const tip = drawn("title");
    const path = drawn("path", { d: link(from, places.get(server), at.client, at.server) }, tip);
    const words = [18, 32].map((below) => text(at.client, from.y + from.height + below, "flow"));
    const label = drawn("g", {}, ...words);
    this.#links.set(`${client} ${server}`, { path, tip, words, isRoomy: at.clientRoom >= LABEL });
    return { path, label };
  }

  #box(node, place) {
    const middle = place.x + place.width / 2;
    const name = text(middle, place.y + 20, "name");
    const lines = [0, 1].map((each) => text(middle, place.y + 37 + each * 17, "line"));
    const tip = drawn("title");
    const group = drawn("g", { class: `node ${node.tier}` }, tip,
      drawn("rect", { ...place, rx: node.tier === "server" ? 2 : 8 }), name, ...lines);
    this.#nodes.set(node.name, { group, name, lines, tip });
    return group;
  }

  #update(node) {
    const known = this.#nodes.get(node.name);
    const symbol = SYMBOLS[node.state] ? `${SYMBOLS[node.state]} ` : "";
    say(known.name, symbol + node.name);
    const lines = node.state && node.tier !== "server" ? [node.state] : [...node.lines];
    if (node.state && node.tier === "server") lines[0] = node.state;
    known.lines.forEach((line, index) => say(line, lines[index] ?? ""));
    say(known.tip, [node.name, ...node.lines, node.state].filter(Boolean).join(", "));
    mark(known.group, "data-state", node.state.startsWith("silent") ? "silent" : node.state);
  }

  #flow({ client, server, rate, moved }) {
    const known = this.#links.get(`${client} ${server}`);
    if (!known) return;
    say(known.tip, `${client} and ${server}${moved ? `: ${moved}` : ""}`);
    const parts = moved.split("  ");
    known.words.forEach((line, index) => say(line, known.isRoomy ? parts[index] ?? "" : ""));
    mark(known.path, "stroke-width", thickness(rate));
  }

  #wait(waits) {
    const paths = waits
      .filter(({ client, whom }) => this.#places.has(client) && this.#places.has(whom))
      .map(({ client, whom, words }) => drawn("path", {
        d: arch(this.#places.get(client), this.#places.get(whom)),
        class: "wait",
        "marker-end": "url(#arrowhead)",
      }, drawn("title", {}, `${client} ${words}, and for ${whom}`)));
    this.#waits.replaceChildren(...paths);
  }

  #tell({ nodes, links, waits }) {
    const told = waits.map(({ client, whom, words }) => `${client} ${words}, because of ${whom}.`);
    say(this.#words, `${nodes.length} processes with ${links.length} links. ${told.join(" ")}`);
    const talks = new Map();
    for (const { client, server, moved } of links) {
      const words = moved ? `${server} (${moved})` : server;
      talks.set(client, [...(talks.get(client) ?? []), words]);
    }
    this.#table.show(nodes.map(({ name, lines, state }) => ({
      name, does: lines.join(", "), talks: (talks.get(name) ?? []).join(", "), state,
    })));
  }
}

function arrowhead() {
  return drawn("defs", {}, drawn("marker", {
    id: "arrowhead", viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 7, markerHeight: 7,
    orient: "auto-start-reverse",
  }, drawn("path", { d: "M0 0 8 4 0 8z" })));
}
