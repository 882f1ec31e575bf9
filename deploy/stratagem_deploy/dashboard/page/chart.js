// One chart: lines over time, with a table of their figures that follows the pointer or the keys.

import { drawn, element, say } from "./elements.js";
import { ceiling, clock, inWords } from "./words.js";

const HEIGHT = 132;
const LETTER = 7; // the widest of the axis' figures
const RIGHT = 4;
const TOP = 8;
const BOTTOM = 20;
const LEAST_SECONDS = 60;
const STYLES = 8; // of lines, in the style sheet

let made = 0;

export class Chart {
  #unit;
  #isFree; // whether the axis may begin elsewhere than at 0
  figure;
  #svg = drawn("svg", { "aria-hidden": "true" });
  #slider;
  #when = element("span", { class: "when" });
  #rows = element("tbody");
  #chosen = null; // the time that the reader has chosen
  #shown = null;
  #left = 0; // room for the figures of the axis

  constructor(title, unit, isFree) {
    this.#unit = unit;
    this.#isFree = isFree;
    const id = `chart-${made += 1}`;
    this.#slider = element("div", {
      class: "plot", role: "slider", tabindex: "0", "aria-labelledby": id,
      "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0",
    }, this.#svg);
    const headings = ["", "then", "least", "most"].map((each) => element("th", { scope: "col" }, each));
    headings[0].append(element("span", { class: "heard" }, "series"));
    headings[1].classList.add("then");
    const legend = element("table", { class: "legend" },
      element("caption", { class: "heard" }, title),
      element("thead", {}, element("tr", {}, ...headings)), this.#rows);
    this.figure = element("figure", {}, element("figcaption", {},
      element("h3", { id }, title), this.#when), this.#slider, legend);
    this.#listen();
  }

  remove() {
    this.figure.remove();
  }

  #listen() {
    this.#slider.addEventListener("pointermove", (event) => {
      const box = this.#svg.getBoundingClientRect();
      const share = (event.clientX - box.left - this.#left) / (box.width - this.#left - RIGHT);
      this.#choose(this.#shown?.nearest(share) ?? null);
    });
    this.#slider.addEventListener("pointerleave", () => this.#choose(null));
    this.#slider.addEventListener("blur", () => this.#choose(null));
    this.#slider.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -1e9, End: 1e9 };
      if (event.key === "Escape") this.#choose(null);
      if (!(event.key in steps) || !this.#shown) return;
      event.preventDefault();
      const { times } = this.#shown;
      const at = this.#chosen === null ? times.length - 1 : times.indexOf(this.#chosen);
      const next = Math.min(times.length - 1, Math.max(0, at + steps[event.key]));
      this.#choose(times[next]);
    });
  }

  #choose(time) {
    this.#chosen = time;
    if (this.#shown) this.#render();
  }

  /** Draws the values of these times, those of the last `most` seconds. */
  draw(times, series, most) {
    const end = times[times.length - 1];
    const span = Math.min(most, Math.max(LEAST_SECONDS, end - times[0]));
    const begin = times.findIndex((time) => time >= end - span);
    const shown = times.slice(begin);
    const lines = [...series]
      .map(([name, values]) => ({ name, values: values.slice(begin) }))
      .filter(({ values }) => values.some((value) => value !== null));
    const width = Math.max(120, this.#slider.clientWidth);
    this.#shown = {
      times: shown, lines, width, end, span,
      nearest: (share) => nearest(shown, end - span + span * share),
    };
    if (this.#chosen !== null && !shown.includes(this.#chosen)) this.#chosen = null;
    this.#render();
  }

  #render() {
    const { times, lines, width, end, span } = this.#shown;
    const known = lines.flatMap(({ values }) => values).filter((value) => value !== null);
    const [low, high] = this.#bounds(known);
    const ticks = [low, (low + high) / 2, high];
    const left = 8 + LETTER * Math.max(...ticks.map((tick) => inWords(tick, this.#unit).length));
    this.#left = left;
    const x = (time) => left + (width - left - RIGHT) * (1 - (end - time) / span);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
    const at = this.#chosen === null ? times.length - 1 : times.indexOf(this.#chosen);
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#svg.replaceChildren(
      ...this.#axes(ticks, y, width),
      ...hours(end, span, x),
      ...lines.map(({ values }, index) => drawn("path", {
        d: path(times, values, x, y), class: `curve style-${index % STYLES}`,
      })),
      ...(this.#chosen === null ? [] : [drawn("line", {
        x1: x(times[at]), x2: x(times[at]), y1: TOP, y2: HEIGHT - BOTTOM, class: "chosen",
      })]),
    );
    this.#legend(lines, at);
    this.#tell(times, lines, at);
  }

  #bounds(known) {
    const most = Math.max(...known, 0);
    if (!this.#isFree) return [0, ceiling(most, this.#unit)];
    const least = Math.min(...known);
    const top = Math.max(...known);
    const room = (top - least || Math.abs(top) || 1) * 0.06;
    return least >= 0 && least < 0.6 * top ? [0, ceiling(top, this.#unit)] : [least - room, top + room];
  }

  #axes(ticks, y, width) {
    return ticks.flatMap((tick) => [
      drawn("line", { x1: this.#left, x2: width, y1: y(tick), y2: y(tick), class: "grid" }),
      drawn("text", { x: this.#left - 8, y: y(tick) + 4, class: "tick end" }, inWords(tick, this.#unit)),
    ]);
  }

  #legend(lines, at) {
    while (this.#rows.rows.length > lines.length) this.#rows.deleteRow(-1);
    lines.forEach(({ name, values }, index) => {
      const row = this.#rows.rows[index] ?? this.#row(index);
      const present = values.filter((value) => value !== null);
      const figures = [values[at], Math.min(...present), Math.max(...present)];
      say(row.cells[0].lastChild, name);
      figures.forEach((value, column) => say(row.cells[column + 1], inWords(value, this.#unit)));
    });
  }

  #row(index) {
    const swatch = drawn("svg", { class: "swatch", viewBox: "0 0 24 8", "aria-hidden": "true" },
      drawn("path", { d: "M0 4H24", class: `curve style-${index % STYLES}` }));
    const row = element("tr", {},
      element("th", { scope: "row" }, swatch, element("span")),
      element("td"), element("td"), element("td"));
    this.#rows.append(row);
    return row;
  }

  #tell(times, lines, at) {
    const heading = this.figure.querySelector(".then");
    say(heading, this.#chosen === null ? "now" : "then");
    say(this.#when, this.#chosen === null ? "" : clock(times[at]));
    const words = lines.map(({ name, values }) => `${name} ${inWords(values[at], this.#unit)}`);
    this.#slider.setAttribute("aria-valuemax", times.length - 1);
    this.#slider.setAttribute("aria-valuenow", at);
    this.#slider.setAttribute("aria-valuetext", `${clock(times[at])}: ${words.join(", ")}`);
  }
}

function nearest(times, wanted) {
  return times.reduce((best, time) =>
    Math.abs(time - wanted) < Math.abs(best - wanted) ? time : best, times[0]);
}

function path(times, values, x, y) {
  let words = "";
  let isUp = true;
  values.forEach((value, index) => {
    if (value !== null) words += `${isUp ? "M" : "L"}${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    isUp = value === null;
  });
  // A point by itself is a line of no length, which round ends make visible.
  return words.replace(/M([\d.-]+ [\d.-]+)(?=M|$)/g, "M$1L$1");
}

function hours(end, span, x) {
  const ago = [span, span / 2, 0];
  const words = ago.map((each) => (each ? `${passed(each)} ago` : "now"));
  return ago.map((each, index) => drawn("text", {
    x: x(end - each), y: HEIGHT - 4,
    class: `tick ${["begin", "middle", "end"][index]}`,
  }, words[index]));
}

function passed(seconds) {
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Number((seconds / 60).toFixed(1))} min`;
}
