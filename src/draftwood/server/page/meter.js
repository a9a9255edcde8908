// Tokens per second as they arrive here, over the last moment and over the whole answer.

const WINDOW = 1000; // milliseconds that "now" looks back
const APART = 50; // milliseconds between points of the curve
const MOST = 240; // points; beyond them every other one goes

export class Meter {
  constructor() {
    this.start = null; // when the first tokens came: reading the prompt is not writing
    this.first = 0;
    this.last = 0;
    this.tokens = 0;
    this.recent = []; // [time, tokens so far]
    this.points = []; // {seconds, speed}
    this.apart = APART;
  }

  add(tokens, now) {
    this.tokens += tokens;
    this.last = now;
    if (this.start === null) {
      this.start = now;
      this.first = tokens;
    }
    this.recent.push([now, this.tokens]);
    while (this.recent.length > 2 && this.recent[1][0] < now - WINDOW) this.recent.shift();
    const [then, before] = this.recent[0];
    const past = this.points.at(-1);
    if (now - then < 2 * APART || (past && now - this.start - past.seconds * 1000 < this.apart)) return;
    this.points.push({ seconds: (now - this.start) / 1000, speed: ((this.tokens - before) / (now - then)) * 1000 });
    if (this.points.length > MOST) {
      this.points = this.points.filter((_, i) => i % 2 === 0);
      this.apart *= 2;
    }
  }

  /** Tokens per second after the first ones; null as long as there is nothing to divide by. */
  speed() {
    const span = this.last - (this.start ?? this.last);
    return span > 0 ? ((this.tokens - this.first) / span) * 1000 : null;
  }
}
