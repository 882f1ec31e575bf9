// Tables that change in place, so that focus, selection and scroll position stay.

import { element, mark, say } from "./elements.js";

/**
 * A table.
 * Columns are [key, heading, kind]; kind "name" for the cell that names the row, "number" for
 * figures, "words" for what may be long.
 */
export class Table {
  #columns;
  #key;
  #rows = new Map();
  #body = element("tbody");
  #region;
  #empty;

  constructor(where, caption, columns, { key, empty = "" }) {
    this.#columns = columns;
    this.#key = key;
    const headings = columns.map(([, heading, kind]) =>
      element("th", { scope: "col", class: kind }, heading));
    const table = element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...headings)), this.#body);
    this.head = table.tHead.rows[0];
    this.#region = element(
      "div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, table);
    this.#empty = element("p", { class: "note" }, empty);
    this.#region.hidden = true;
    this.#empty.hidden = true;
    where.append(this.#region, this.#empty);
  }

  /** Shows these rows, in this order. */
  show(rows) {
    this.#region.hidden = rows.length === 0;
    this.#empty.hidden = rows.length > 0 || !this.#empty.textContent;
    const seen = new Map();
    const counts = new Map();
    let next = this.#body.firstChild;
    for (const row of rows) {
      const same = this.#key(row);
      const count = (counts.get(same) ?? 0) + 1;
      counts.set(same, count);
      const name = `${count} ${same}`;
      const known = this.#rows.get(name) ?? this.#made();
      this.#fill(known, row);
      seen.set(name, known);
      if (known === next) next = next.nextSibling;
      else this.#body.insertBefore(known, next);
    }
    for (const [name, known] of this.#rows) if (!seen.has(name)) known.remove();
    this.#rows = seen;
  }

  #made() {
    const cells = this.#columns.map(([, , kind]) => kind === "name"
      ? element("th", { scope: "row", class: kind })
      : element("td", { class: kind }));
    return element("tr", {}, ...cells);
  }

  #fill(made, row) {
    this.#columns.forEach(([key], index) => say(made.cells[index], row[key] ?? ""));
    mark(made, "data-state", row.state ?? "");
  }
}
