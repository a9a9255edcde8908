// The last rounds as columns: how deep each was drafted (outline), what it emitted (filled, coloured by source).

import { drawing, element } from "./dom.js";

const HEIGHT = 56;
const STEP = 11;
const WIDE = 8;

export class Strip {
  constructor(box, sources, choose) {
    this.box = box;
    this.sources = sources;
    this.answer = null;
    this.recent = [];
    this.chosen = null;
    this.note = element("p", {}, "Last rounds: drafted depth, and what was emitted");
    box.addEventListener("click", (event) => {
      const column = event.target.closest(".bar-of-round");
      if (column) choose(this.answer, Number(column.dataset.round));
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  begin(answer) {
    this.answer = answer;
    this.recent = [];
    this.draw();
  }

  add(round) {
    const depths = [];
    round.parents.forEach((parent, node) => depths.push(parent < 0 ? 0 : depths[parent] + 1));
    const sources = round.accepted.map((node) => round.sources[node]);
    this.recent.push({ index: round.index, depth: Math.max(...depths), sources, emitted: round.emitted.length });
    if (this.recent.length > 256) this.recent = this.recent.slice(-128);
  }

  mark(index) {
    this.chosen = index;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth - 32;
    if (width < 120) return;
    const shown = this.recent.slice(-Math.floor(width / STEP));
    if (!shown.length) return this.box.replaceChildren();
    const most = Math.max(4, ...shown.map((round) => Math.max(round.depth + 1, round.emitted)));
    const unit = HEIGHT / most;
    const columns = shown.map((round, i) => this.column(round, i * STEP, unit));
    const svg = drawing("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" }, ...columns);
    this.box.replaceChildren(this.note, svg);
  }

  column(round, x, unit) {
    const parts = [drawing("rect", { class: "reach", x: x - 1.5, y: 0, width: STEP, height: HEIGHT, rx: 2 })];
    if (round.depth) parts.push(box("drafted", x + 0.5, round.depth + 1, round.depth + 1, unit, WIDE - 1));
    for (let i = 0; i < round.emitted; i += 1) {
      const source = round.sources[i];
      const look = source === undefined ? "" : this.sources.look(this.answer.run.names.of(source)).replace("source ", "");
      parts.push(box(`got ${look}`, x, i + 1, 1, unit, WIDE));
    }
    return drawing("g", { class: `bar-of-round${round.index === this.chosen ? " chosen" : ""}`, "data-round": round.index }, ...parts);
  }
}

function box(kind, x, top, units, unit, width) {
  const height = units * unit;
  return drawing("rect", { class: kind, x, y: (HEIGHT - top * unit + 0.75).toFixed(2), width, height: Math.max(1, height - 1.5).toFixed(2), rx: 1.5 });
}
