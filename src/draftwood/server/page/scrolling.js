// The conversation stays at its end while it grows, unless the reader has scrolled up.

import { byId } from "./dom.js";

const NEAR = 60; // pixels from the end that still count as the end

export class Scrolling {
  constructor() {
    this.log = byId("log");
    this.newest = byId("newest");
    this.follows = true;
    this.log.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.log;
      this.follows = scrollHeight - scrollTop - clientHeight < NEAR;
      this.newest.hidden = this.follows;
    }, { passive: true });
    this.newest.addEventListener("click", () => this.toEnd());
  }

  /** In a frame, after something was added. */
  follow() {
    if (this.follows) this.log.scrollTop = this.log.scrollHeight;
  }

  toEnd() {
    this.follows = true;
    this.newest.hidden = true;
    this.follow();
  }
}
