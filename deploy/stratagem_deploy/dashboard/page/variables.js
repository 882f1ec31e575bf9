// The variables of all servers: many, so they are asked for while somebody sees them.

import { byId, element, mark, say } from "./elements.js";
import { Table } from "./tables.js";

const EVERY = 10_000; // milliseconds
const FEW = 100;
const COLUMNS = [
  ["name", "name", "name"], ["place", "place", ""], ["dtype", "dtype", ""], ["shape", "shape", ""],
  ["bytes", "bytes", "number"], ["rows", "rows", "number"], ["version", "version", "number"],
  ["slots", "slots", "words"],
];

export class Variables {
  #all = [];
  #shows = FEW;
  #order = { key: "", descending: false };
  #table = new Table(byId("variables-table"), "Variables", COLUMNS, {
    key: (row) => `${row.place} ${row.name}`,
    empty: "There are none.",
  });

  constructor() {
    byId("filter").addEventListener("input", () => this.#show());
    byId("all").addEventListener("click", () => {
      this.#shows = Infinity;
      this.#show();
    });
    COLUMNS.forEach(([key, heading], index) => this.#sortable(key, heading, index));
    let timer = null;
    new IntersectionObserver(([{ isIntersecting }]) => {
      clearInterval(timer);
      if (!isIntersecting) return;
      this.ask();
      timer = setInterval(() => this.ask(), EVERY);
    }).observe(byId("variables"));
  }

  #sortable(key, heading, index) {
    const button = element("button", { type: "button", class: "sort" }, heading);
    const cell = this.#table.head.cells[index];
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const descending = this.#order.key === key && !this.#order.descending;
      this.#order = { key, descending };
      for (const each of this.#table.head.cells) mark(each, "aria-sort", "");
      mark(cell, "aria-sort", descending ? "descending" : "ascending");
      this.#show();
    });
  }

  async ask() {
    if (document.hidden) return;
    try {
      const answer = await fetch("/variables");
      if (!answer.ok) return;
      this.#all = (await answer.json()).variables;
    } catch {
      return; // the next look says that there is no connection
    }
    this.#show();
  }

  #show() {
    const began = performance.now();
    const wanted = byId("filter").value;
    const found = this.#sorted(this.#all.filter(({ shown }) => shown.name.includes(wanted)));
    const some = found.slice(0, this.#shows);
    this.#table.show(some.map(({ shown }) => shown));
    const more = found.length > some.length;
    byId("all").hidden = !more;
    say(byId("all"), `Show all ${found.length}`);
    const of = wanted ? ` of ${this.#all.length}` : "";
    say(byId("counted"), `${found.length}${of} variables${more ? `, ${some.length} shown` : ""}`);
    performance.clearMeasures("variables");
    performance.measure("variables", { start: began, end: performance.now() });
  }

  #sorted(rows) {
    const { key, descending } = this.#order;
    if (!key) return rows;
    const sign = descending ? -1 : 1;
    return rows.sort((a, b) => sign * compared(a[key], b[key]));
  }
}

function compared(a, b) {
  if (typeof a === "number" || typeof b === "number") return (a ?? -1) - (b ?? -1);
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}
