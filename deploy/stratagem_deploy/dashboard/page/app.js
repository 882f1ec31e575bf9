// Asks the dashboard again and again, and shows what it says.

import { Curves } from "./curves.js";
import { byId, element, mark, say } from "./elements.js";
import { Picture } from "./picture.js";
import { Table } from "./tables.js";
import { Variables } from "./variables.js";
import { clock } from "./words.js";

const FIGURES = [
  ["steps", "steps/s"], ["received", "to servers"], ["sent", "from servers"],
  ["held", "in variables"], ["servers", "servers"], ["clients", "clients"],
];
const LATE = 3; // intervals without a look
const FEW = 5; // findings, beyond which the others are shown on demand

const curves = new Curves();
const picture = new Picture();
const tables = {
  servers: new Table(byId("servers-table"), "What servers are doing", [
    ["server", "server", "name"], ["address", "address", ""], ["release", "release", ""], ["up", "up", "number"],
    ["clients", "clients", "number"], ["holds", "holds", ""], ["doing", "doing", "words"],
  ], { key: (row) => `${row.server} ${row.address}` }),
  steps: new Table(byId("steps-table"), "Steps", [
    ["worker", "worker", "name"], ["optimizer", "optimizer", ""],
    ["consistency", "consistency", ""], ["steps", "steps/s", "number"],
    ["staleness", "staleness", ""], ["dropped", "dropped", "number"], ["gone", "why it is gone", "words"],
  ], { key: (row) => `${row.worker} ${row.optimizer}`, empty: "No worker has taken a step." }),
  clients: new Table(byId("clients-table"), "Clients", [
    ["client", "client", "name"], ["role", "role", ""], ["release", "release", ""],
    ["last_heard_of", "last heard of", "number"], ["servers", "servers", "number"],
    ["own_time", "own time for a step", "number"],
  ], { key: (row) => `${row.client} ${row.role}`, empty: "There are no clients." }),
  waits: new Table(byId("waits-table"), "Who waits for whom", [
    ["client", "client", "name"], ["waits_for", "waits for", ""],
    ["since", "since", "number"], ["on", "on", ""], ["for_whom", "for whom", "words"],
  ], { key: (row) => `${row.client} ${row.waits_for} ${row.on}`, empty: "Nobody waits for others." }),
  calls: new Table(byId("calls-table"), "Calls of all servers, since the look before", [
    ["method", "method", "name"], ["calls", "calls/s", "number"], ["failed", "failed", "number"],
    ["mean", "mean", "number"], ["within", "99 % within", "number"],
    ["received", "received/s", "number"], ["sent", "sent/s", "number"],
  ], { key: (row) => row.method, empty: "There were no calls." }),
  checkpoints: new Table(byId("checkpoints-table"), "Checkpoints since servers were started", [
    ["server", "server", "name"], ["age", "last written", "number"], ["size", "size", "number"],
    ["took", "took", "number"], ["written", "written", "number"], ["failed", "failed", "number"],
    ["folder", "folder", ""], ["restored_from", "restored from", "words"],
  ], { key: (row) => row.server, empty: "None was read or written." }),
};
new Variables();

let interval = 2;
let shown = -1;
let timer = null;
let showsAll = false;

async function poll() {
  clearTimeout(timer);
  try {
    const answer = await fetch(`/look?after=${curves.number}`);
    if (answer.status === 401) return tell("lost", "Signed out: open the address that was told last");
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.json());
  } catch {
    tell("lost", "No connection to the dashboard; trying again");
  }
  timer = setTimeout(poll, interval * 1000);
}

function tell(state, words) {
  say(byId("freshness-words"), words);
  mark(byId("freshness"), "data-state", state);
}

function show(facts) {
  const began = performance.now();
  interval = facts.interval;
  say(byId("cluster"), facts.cluster);
  freshness(facts);
  if (facts.number && facts.number !== shown) {
    shown = facts.number;
    update(facts);
    painted(began);
  }
}

function freshness({ now, looked, problem }) {
  const age = now - looked;
  if (problem) tell("lost", `No look: ${problem}`);
  else if (!looked) tell("waiting", "Looking at the cluster");
  else if (age > LATE * interval) tell("late", `Last look ${Math.round(age)} s ago; a server is slow to answer`);
  else tell("live", `Live, ${clock(looked)}`);
}

function update({ view, curves: points, events }) {
  verdict(view.findings);
  figures(view.summary);
  say(byId("exposure"), view.exposure);
  picture.show(view.picture);
  curves.add(points);
  curves.draw();
  for (const [name, table] of Object.entries(tables)) table.show(view[name].map(stated));
  happened(events);
}

/** Returns a row of a server that does not answer with the reason, and marks it. */
function stated(row) {
  return row.problem ? { ...row, doing: row.problem, state: "problem" } : row;
}

function verdict(findings) {
  const stalls = findings.filter((each) => each.stalls).length;
  const words = stalls
    ? `${stalls === 1 ? "One thing holds" : `${stalls} things hold`} the cluster up`
    : findings.length
      ? findings.length === 1
        ? "One thing is not as it should be"
        : `${findings.length} things are not as they should be`
      : "Nothing is wrong, as far as servers can tell";
  const state = stalls ? "stalled" : findings.length ? "flawed" : "sound";
  mark(byId("verdict"), "data-state", state);
  say(byId("verdict"), words);
  say(byId("heard"), words);
  say(document.querySelector("title"), `${stalls ? "▲ " : findings.length ? "• " : ""}Stratagem`);
  listed(findings);
}

function listed(findings) {
  const list = byId("findings");
  const few = showsAll ? findings.length : FEW;
  byId("more-findings").hidden = findings.length <= few;
  say(byId("more-findings"), `Show all ${findings.length}`);
  while (list.children.length > findings.length) list.lastChild.remove();
  findings.forEach(({ what, remedy, stalls: isStall }, index) => {
    const item = list.children[index] ?? list.appendChild(
      element("li", {}, element("p", { class: "what" }), element("p", { class: "remedy" })));
    mark(item, "data-state", isStall ? "stalled" : "flawed");
    item.hidden = index >= few;
    say(item.children[0], what);
    say(item.children[1], `What to do: ${remedy}`);
  });
}

function figures(summary) {
  const list = byId("figures");
  FIGURES.forEach(([key, label], index) => {
    const item = list.children[index] ?? list.appendChild(
      element("div", {}, element("dt", {}, label), element("dd")));
    say(item.children[1], summary[key]);
  });
}

function happened(events) {
  const list = byId("event-list");
  byId("no-events").hidden = events.length > 0;
  while (list.children.length > events.length) list.lastChild.remove();
  events.forEach(({ time, kind, what }, index) => {
    const item = list.children[index] ?? list.appendChild(element(
      "li", {}, element("time"), element("span", { class: "kind" }), element("span", { class: "what" })));
    mark(item, "data-kind", kind);
    say(item.children[0], clock(time));
    say(item.children[1], kind);
    say(item.children[2], what);
  });
}

/** Notes how long an update took, until it was painted. */
function painted(began) {
  requestAnimationFrame(() => setTimeout(() => {
    performance.clearMeasures("update");
    performance.measure("update", { start: began, end: performance.now() });
  }));
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const label = () => say(button, isDark() ? "Light" : "Dark");
  const kept = localStorage.getItem("theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  button.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem("theme", chosen);
    label();
  });
  dark.addEventListener("change", label);
  label();
}

theme();
byId("more-findings").addEventListener("click", () => {
  showsAll = true;
  for (const item of byId("findings").children) item.hidden = false;
  byId("more-findings").hidden = true;
  byId("findings").children[FEW].setAttribute("tabindex", "-1");
  byId("findings").children[FEW].focus();
});
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));
poll();
