// The cluster as a picture: programs above, workers, and servers below.

import { byId, drawn, mark, say } from "./elements.js";
import { Table } from "./tables.js";

const TIERS = {
  program: { least: 120, most: 200, height: 52, gap: 40 },
  worker: { least: 112, most: 200, height: 52, gap: 40 },
  server: { least: 168, most: 260, height: 70, gap: 72 },
};
const FEW = 8; // more nodes than these are drawn smaller
const SMALL = { least: 90, most: 150, height: 46, gap: 10 };
const BETWEEN = 92; // between tiers
const ABOVE = 34; // for waits, which pass above
const MOST_LABELS = 8; // links beyond these have their figures in the table only
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

function link(from, to) {
  const down = from.y <= to.y;
  const x1 = from.x + from.width / 2;
  const x2 = to.x + to.width / 2;
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
    picture.links.forEach((each) => this.#flow(each, picture.links.length));
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
    const lines = links
      .filter(({ client, server }) => places.has(client) && places.has(server))
      .map((each) => this.#line(each, places));
    const boxes = nodes.map((node) => this.#box(node, places.get(node.name)));
    const labels = lines.map(({ label }) => label);
    this.#svg.replaceChildren(this.#title, this.#words, arrowhead(),
      drawn("g", { class: "links" }, ...lines.map(({ path }) => path)), ...boxes,
      drawn("g", {}, ...labels), this.#waits);
  }

  #line({ client, server }, places) {
    const from = places.get(client);
    const to = places.get(server);
    const tip = drawn("title");
    const path = drawn("path", { d: link(from, to) }, tip);
    // Where a link has left its client a little, no two of them are at the same place.
    const share = 0.2;
    const [x1, x2] = [from.x + from.width / 2, to.x + to.width / 2];
    const y1 = from.y + from.height;
    const bent = 3 * share ** 2 - 2 * share ** 3;
    const x = x1 + (x2 - x1) * bent;
    const label = text(x, y1 + (to.y - y1) * (share + 0.02), "flow");
    this.#links.set(`${client} ${server}`, { path, tip, label });
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

  #flow({ client, server, rate, moved }, number) {
    const known = this.#links.get(`${client} ${server}`);
    if (!known) return;
    say(known.tip, `${client} and ${server}${moved ? `: ${moved}` : ""}`);
    say(known.label, number <= MOST_LABELS && this.#roomy() ? moved : "");
    mark(known.path, "stroke-width", thickness(rate));
  }

  #roomy() {
    return byId("drawing").clientWidth >= 640;
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
