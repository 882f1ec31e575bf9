// The last hour, as the page has it.

import { byId } from "./elements.js";
import { Chart } from "./chart.js";

const TITLES = {
  steps: ["Steps by the second", "number"],
  received: ["Received by servers", "rate"],
  sent: ["Sent by servers", "rate"],
  update: ["Mean time of an Update", "seconds"],
  waiting: ["Requests that wait", "number"],
  held: ["Memory of variables", "bytes"],
  hits: ["Of 100 rows of tables, found in memory", "number"],
  disk: ["Files of tables", "bytes"],
};
const SCALAR = "scalar/"; // before the names of a program's own numbers
const NAMES = Object.keys(TITLES);

/** Returns the place of a chart: a program's own numbers come first. */
function place(name) {
  return NAMES.indexOf(name);
}

export class Curves {
  number = 0;
  #times = [];
  #series = new Map(); // of each chart, the values of each series by name
  #charts = new Map();
  #span = 300;

  constructor() {
    byId("spans").addEventListener("change", (event) => {
      this.#span = Number(event.target.value);
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(byId("charts"));
  }

  /** Adds points; those from a dashboard that was started again replace all. */
  add(curves) {
    if (curves.number < this.number) this.#forget();
    if (curves.times.length) {
      this.#append(curves);
      this.#trim(curves.number - curves.first + 1);
    }
    this.number = curves.number;
  }

  #forget() {
    this.#times = [];
    this.#series.clear();
  }

  #append({ times, charts }) {
    const before = this.#times.length;
    this.#times.push(...times);
    for (const [chart, series] of Object.entries(charts)) {
      const mine = this.#series.get(chart) ?? new Map();
      this.#series.set(chart, mine);
      for (const [name, values] of Object.entries(series)) {
        const known = mine.get(name) ?? Array(before).fill(null);
        known.push(...values);
        mine.set(name, known);
      }
    }
    for (const mine of this.#series.values()) {
      for (const values of mine.values()) while (values.length < this.#times.length) values.push(null);
    }
  }

  #trim(most) {
    const surplus = this.#times.length - most;
    if (surplus <= 0) return;
    this.#times.splice(0, surplus);
    for (const [chart, mine] of this.#series) {
      for (const [name, values] of mine) {
        values.splice(0, surplus);
        if (values.every((value) => value === null)) mine.delete(name);
      }
      if (!mine.size) this.#series.delete(chart);
    }
  }

  draw() {
    byId("no-curves").hidden = this.#times.length > 0;
    for (const name of this.#series.keys()) {
      if (this.#series.has(name) && !this.#charts.has(name)) this.#make(name);
    }
    for (const [name, chart] of this.#charts) {
      const series = this.#series.get(name);
      if (series) chart.draw(this.#times, series, this.#span);
      else {
        chart.remove();
        this.#charts.delete(name);
      }
    }
  }

  #make(name) {
    const [title, unit] = TITLES[name] ?? [name.slice(SCALAR.length), "number"];
    const chart = new Chart(title, unit, !(name in TITLES));
    this.#charts.set(name, chart);
    const before = [...this.#charts.keys()].filter((each) => place(each) > place(name)).map(
      (each) => this.#charts.get(each).figure);
    const where = byId("charts");
    where.insertBefore(chart.figure, [...where.children].find((each) => before.includes(each)) ?? null);
  }
}
