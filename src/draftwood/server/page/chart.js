// Tokens per second over the seconds of an answer, with plain decoding as a dashed line.

import { drawing } from "./dom.js";
import { speed } from "./format.js";

const HEIGHT = 132;
const LEFT = 30;
const TOP = 16;
const BOTTOM = 20;

export class Chart {
  constructor(box) {
    this.box = box;
    this.points = [];
    this.plain = null; // {speed, note}
    new ResizeObserver(() => this.draw()).observe(box);
  }

  show(points, plain) {
    this.points = points;
    this.plain = plain;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth - 32;
    if (width < 120) return; // not on show
    const top = nice(Math.max(10, this.plain?.speed ?? 0, ...this.points.map((point) => point.speed)) * 1.08);
    const end = Math.max(0.2, this.points.at(-1)?.seconds ?? 0);
    const x = (seconds) => LEFT + (seconds / end) * (width - LEFT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [0, top / 2, top].flatMap((value) => [
      drawing("path", { class: "grid", d: `M${LEFT} ${y(value)}H${width}` }),
      drawing("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, String(value)),
    ]);
    parts.push(drawing("text", { x: LEFT, y: HEIGHT - 4 }, "0 s"), drawing("text", { x: width, y: HEIGHT - 4, "text-anchor": "end" }, `${end.toFixed(end < 10 ? 1 : 0)} s`));
    if (this.points.length > 1) {
      const line = this.points.map((point, i) => `${i ? "L" : "M"}${x(point.seconds).toFixed(1)} ${y(point.speed).toFixed(1)}`).join("");
      const first = x(this.points[0].seconds).toFixed(1);
      const last = x(this.points.at(-1).seconds).toFixed(1);
      parts.push(drawing("path", { class: "area", d: `${line}V${y(0)}H${first}Z` }), drawing("path", { class: "curve", d: line, "data-last": last }));
    }
    if (this.plain) {
      // On the side of the line where the curve is not.
      const under = (this.points.at(-1)?.speed ?? 0) > this.plain.speed && y(this.plain.speed) + 16 < HEIGHT - BOTTOM;
      const place = y(this.plain.speed) + (under ? 14 : -6);
      parts.push(
        drawing("path", { class: "plain", d: `M${LEFT} ${y(this.plain.speed)}H${width}` }),
        drawing("text", { class: "plain-label", x: width, y: place, "text-anchor": "end" }, `plain ${speed(this.plain.speed)}, ${this.plain.note}`),
      );
    }
    const label = this.points.length ? "Tokens per second of this answer" : "No answer measured yet";
    this.box.replaceChildren(drawing("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label }, ...parts));
  }
}

/** The next even-looking number of which the half looks even too. */
function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * unit >= value) * unit;
}
