// The panel that shows one round: its tree, what came of it, what it cost. Arrow keys walk the rounds, Escape closes it.

import { byId, element, icon } from "./dom.js";
import { count, milliseconds, visible } from "./format.js";
import { KEPT, summary } from "./rounds.js";
import { treeDrawing, treeTable } from "./tree_view.js";

export class RoundPanel {
  /** `find(answer, index)` gives a kept round or null; `say` tells those who do not see the drawing. */
  constructor(sources, find, say) {
    this.sources = sources;
    this.find = find;
    this.say = say;
    this.answer = null; // the answer whose round is open
    this.index = null;
    this.panel = byId("round");
    this.body = byId("round-body");
    byId("before").addEventListener("click", () => this.walk(-1));
    byId("after").addEventListener("click", () => this.walk(1));
    byId("close").addEventListener("click", () => this.close());
    byId("wide").addEventListener("click", () => this.widen(!this.panel.classList.contains("large")));
    this.panel.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keydown", (event) => this.escape(event));
    this.close();
  }

  show(answer, index, { focus = false } = {}) {
    if (this.answer && this.answer !== answer) this.answer.text.mark(null);
    this.answer = answer;
    this.index = index;
    answer.text.mark(index);
    this.panel.classList.add("open");
    this.fill();
    if (focus) this.panel.focus({ preventScroll: true });
  }

  fill() {
    const { answer, index } = this;
    const order = answer.text.order;
    const at = order.indexOf(index);
    const round = this.find(answer, index);
    byId("round-title").textContent = `Round ${(index + 1).toLocaleString("en")} of ${(order.at(-1) + 1).toLocaleString("en")}`;
    byId("before").disabled = at <= 0;
    byId("after").disabled = at < 0 || at === order.length - 1;
    for (const id of ["before", "after", "wide", "close"]) byId(id).hidden = false;
    if (!round) return this.body.replaceChildren(nothing(answer.run.totals.rounds ? `This round is no longer kept: the page keeps the newest ${KEPT.toLocaleString("en")}.` : "The server sent no rounds with this answer."));
    const box = element("div", { class: "tree", tabindex: "0", role: "group", "aria-label": "Draft tree" }, treeDrawing(round, this.sources, answer.run.names));
    const open = this.body.querySelector("details")?.open;
    const table = treeTable(round, answer.run.names);
    table.open = Boolean(open);
    const words = sentence(round);
    this.body.replaceChildren(words, this.emitted(round), box, costs(round), table);
    this.say(`${byId("round-title").textContent}. ${words.textContent} ${round.emitted.join("")}`);
  }

  /** What the round wrote, each token as its source looks. */
  emitted(round) {
    const looks = round.accepted.map((node) => this.sources.look(this.answer.run.names.of(round.sources[node])));
    const spans = round.emitted.map((text, i) => element("span", { class: looks[i] ?? "own" }, visible(text, 60)));
    return element("p", { class: "emitted" }, ...spans);
  }

  walk(step) {
    const order = this.answer?.text.order ?? [];
    const to = order[order.indexOf(this.index) + step];
    if (to !== undefined) this.show(this.answer, to);
  }

  /** New rounds have come while one is open: it has others behind it now. */
  refresh() {
    if (!this.answer) return;
    const order = this.answer.text.order;
    byId("after").disabled = this.index === order.at(-1);
    byId("round-title").textContent = `Round ${(this.index + 1).toLocaleString("en")} of ${(order.at(-1) + 1).toLocaleString("en")}`;
  }

  close() {
    const answer = this.answer;
    const inside = this.panel.contains(document.activeElement);
    const cursor = this.index;
    this.answer = this.index = null;
    this.widen(false);
    this.panel.classList.remove("open");
    byId("round-title").textContent = "Round";
    for (const id of ["before", "after", "wide", "close"]) byId(id).hidden = true;
    this.body.replaceChildren(nothing("Choose a token of an answer to see the round that wrote it: what was drafted, what was accepted, and what the target added."));
    if (!answer) return;
    answer.text.mark(null);
    answer.text.cursor = cursor; // keys go on from here
    if (inside) answer.text.node.focus({ preventScroll: true });
  }

  widen(large) {
    this.panel.classList.toggle("large", large);
    byId("wide").setAttribute("aria-pressed", String(large));
  }

  key(event) {
    if (!this.answer || event.ctrlKey || event.metaKey || event.altKey) return;
    const order = this.answer.text.order;
    const act = {
      ArrowLeft: () => this.walk(-1),
      ArrowRight: () => this.walk(1),
      Home: () => this.show(this.answer, order[0]),
      End: () => this.show(this.answer, order.at(-1)),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  escape(event) {
    if (event.key !== "Escape" || !this.answer) return;
    if (this.panel.classList.contains("large")) this.widen(false);
    else this.close();
  }
}

function nothing(text) {
  return element("p", { class: "nothing" }, icon("tree"), text);
}

function sentence(round) {
  const { drafted, accepted, emitted } = summary(round);
  const said = drafted
    ? [element("b", {}, count(drafted, "token")), " drafted, ", element("b", {}, String(accepted)), " accepted, ", element("b", {}, String(emitted)), " emitted:"]
    : ["Nothing drafted; the target wrote ", element("b", {}, count(emitted, "token")), ":"];
  return element("p", { class: "sentence" }, ...said);
}

function costs(round) {
  const { draft = 0, verify = 0, total = 0 } = round.seconds ?? {};
  const parts = [["draft", "drafting", draft], ["verify", "target pass and verification", verify], ["rest", "the rest", Math.max(0, total - draft - verify)]];
  const bar = element("div", { class: "parts", "aria-hidden": "true" });
  for (const [kind, , seconds] of parts) {
    const part = element("i", { class: kind });
    part.style.flex = `${seconds * 1e6} 1 0`; // below a sum of 1 the bar would not be filled
    bar.append(part);
  }
  const items = parts.map(([kind, name, seconds]) => element("li", {}, element("i", { class: kind }), `${name} `, element("b", {}, milliseconds(seconds))));
  const each = total / Math.max(1, round.emitted.length);
  const sum = element("li", {}, "in all ", element("b", {}, milliseconds(total)));
  const rate = element("li", {}, "a token ", element("b", {}, milliseconds(each)));
  return element("div", { class: "costs" }, bar, element("ul", {}, ...items, sum, rate));
}
