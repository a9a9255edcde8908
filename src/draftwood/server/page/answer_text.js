// The tokens of one answer on the page: a span each, coloured by source, gathered in blocks that end at line breaks.

import { Blocks } from "./blocks.js";
import { element } from "./dom.js";

const LARGE = 1500; // tokens of a block that is laid out again at most once in a while
const WHILE = 150; // milliseconds

export class AnswerText {
  /** `choose(index)` is called with the number of a round when one of its tokens is chosen. */
  constructor(sources, names, choose) {
    this.sources = sources;
    this.names = names;
    this.choose = choose;
    this.queue = [];
    this.firsts = new Map(); // round -> its first span
    this.order = []; // rounds that emitted, in their order
    this.flushed = 0;
    this.cursor = null; // the round that keys walk from
    this.near = null;
    this.node = element("div", {
      class: "text", tabindex: "0", role: "group", "aria-label": "Answer", "aria-description": "Enter opens the draft tree of a round, left and right walk the rounds",
    });
    this.blocks = new Blocks(this.node);
    this.node.addEventListener("click", (event) => this.clicked(event));
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.node.addEventListener("pointerover", (event) => this.hover(roundOf(event.target)));
    this.node.addEventListener("pointerleave", () => this.hover(null));
  }

  push(tokens) {
    for (const token of tokens) this.queue.push(token);
  }

  /** Put what was pushed on the page, all at once. Behind a paragraph without an end it may wait for a later call. */
  flush({ all = false } = {}) {
    const now = performance.now();
    if (!this.queue.length || (!all && this.blocks.held > LARGE && now - this.flushed < WHILE)) return;
    this.flushed = now;
    for (const token of this.queue) this.blocks.add(this.span(token), token.text);
    this.blocks.settle();
    this.queue = [];
  }

  span(token) {
    const name = this.names.of(token.source);
    const span = element("span", { class: name === null ? "token" : `token ${this.sources.look(name)}` }, token.text);
    if (token.round !== null && token.round !== undefined) {
      span.round = token.round;
      if (!this.firsts.has(token.round)) {
        this.firsts.set(token.round, span);
        this.order.push(token.round);
      }
    }
    return span;
  }

  spans(round) {
    const found = [];
    for (let span = this.firsts.get(round); span?.round === round; span = next(span)) found.push(span);
    return found;
  }

  /** Mark the tokens of a round, and of no other one, as those whose tree is open. */
  mark(round) {
    if (this.cursor !== null) for (const span of this.spans(this.cursor)) span.classList.remove("chosen");
    this.cursor = round;
    if (round === null) return;
    const spans = this.spans(round);
    for (const span of spans) span.classList.add("chosen");
    spans[0]?.scrollIntoView({ block: "nearest" });
  }

  hover(round) {
    if (round === this.near) return;
    if (this.near !== null) for (const span of this.spans(this.near)) span.classList.remove("near");
    this.near = round;
    if (round !== null) for (const span of this.spans(round)) span.classList.add("near");
  }

  clicked(event) {
    const round = roundOf(event.target);
    if (round !== null && getSelection().isCollapsed) this.choose(round);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = this.target(event.key);
    if (to === undefined) return;
    event.preventDefault();
    this.choose(to);
  }

  target(key) {
    if (!this.order.length) return undefined;
    const at = this.cursor === null ? -1 : this.order.indexOf(this.cursor);
    const last = this.order.length - 1;
    if (key === "ArrowRight") return this.order[Math.min(at + 1, last)];
    if (key === "ArrowLeft") return this.order[at < 0 ? last : Math.max(at - 1, 0)];
    if (key === "Home") return this.order[0];
    if (key === "End") return this.order[last];
    if (key === "Enter" || key === " ") return this.order[at < 0 ? last : at];
    return undefined;
  }
}

function roundOf(node) {
  return node.round ?? null;
}

function next(span) {
  return span.nextElementSibling ?? span.parentNode.nextElementSibling?.firstElementChild ?? null;
}
