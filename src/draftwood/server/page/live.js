// The figures of the answer being written, or of the last one, against plain decoding.

import { Chart } from "./chart.js";
import { byId } from "./dom.js";
import { decimals, percent, speed, times } from "./format.js";
import { Strip } from "./strip.js";

const APART = 120; // milliseconds between drawings: figures that change faster cannot be read

export class Live {
  constructor(sources, choose) {
    this.chart = new Chart(byId("chart"));
    this.strip = new Strip(byId("strip"), sources, choose);
    this.plain = null; // {speed, note}
    this.run = null;
    this.drawn = 0;
  }

  setPlain(tokensPerSecond, note) {
    this.plain = tokensPerSecond ? { speed: tokensPerSecond, note } : null;
    this.draw();
  }

  begin(answer) {
    this.run = answer.run;
    this.strip.begin(answer);
    this.draw();
  }

  add(rounds) {
    for (const round of rounds) this.strip.add(round);
  }

  /** In a frame, while an answer is written. */
  tick(now = performance.now()) {
    if (now - this.drawn < APART) return;
    this.draw(now);
  }

  reset() {
    this.run = null;
    this.strip.begin(null);
    this.draw();
  }

  draw(now = performance.now()) {
    this.drawn = now;
    const { run, plain } = this;
    const rate = run?.meter.speed() ?? null;
    byId("speed").textContent = speed(rate);
    byId("ratio").textContent = rate && plain ? times(rate / plain.speed) : "–";
    byId("per-pass").textContent = decimals(run?.perPass());
    byId("accepted").textContent = percent(run?.accepted());
    this.chart.show(run?.meter.points ?? [], plain);
    this.strip.draw();
  }
}
