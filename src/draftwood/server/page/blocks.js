// The parts of an answer, which a browser lays out and paints one by one. They end at line breaks; fenced code has its own.

import { element } from "./dom.js";

const FULL = 48; // tokens after which a line break begins a new block
const FENCE = "```";

export class Blocks {
  constructor(node) {
    this.node = node;
    this.block = null;
    this.held = 0; // tokens in the block
    this.part = document.createDocumentFragment();
    this.line = ""; // the text of the line so far
    this.code = false;
    this.opening = false; // in the line that begins the code
  }

  /** Put a span behind the others. It shows once `settle` is called. */
  add(span, text) {
    if (!this.code && this.line === "" && text.trimStart().startsWith(FENCE)) {
      this.end();
      this.code = this.opening = true;
    }
    if (!this.block) {
      this.block = element("div", { class: this.code ? "block code" : "block" });
      this.held = 0;
      this.node.append(this.block);
    }
    this.part.append(span);
    this.held += 1;
    const closed = this.read(text);
    if (text.endsWith("\n") && (closed || this.held >= FULL)) this.end();
  }

  /** Keep track of lines; true if the code has ended with this text. */
  read(text) {
    const lines = (this.line + text).split("\n");
    this.line = lines.pop();
    for (const line of lines) {
      if (this.opening) this.opening = false;
      else if (this.code && line.trim() === FENCE) {
        this.code = false;
        return true;
      }
    }
    return false;
  }

  settle() {
    this.block?.append(this.part);
  }

  end() {
    this.settle();
    this.block = null;
  }
}
