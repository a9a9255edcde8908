// Names and looks of the sources of tokens. A name keeps its look for as long as the page is open, whatever recipe brings it.

import { element } from "./dom.js";

export const TARGET = -1;
const LOOKS = 6;

const ABOUT = new Map([
  ["NGram", "copies from the text"],
  ["Prediction", "the predicted answer"],
  ["Suffix", "copies from this and earlier texts"],
  ["Features", "a head on the target's features"],
  ["DraftModel", "a small model"],
]);

export class Sources {
  constructor(legend) {
    this.legend = legend;
    this.looks = new Map(); // name -> number of its look
    this.draw();
  }

  /** The class of a look, "" for the target's own tokens. */
  look(name) {
    if (name === null) return "";
    let number = this.looks.get(name);
    if (number === undefined) {
      number = this.looks.size;
      this.looks.set(name, number);
      this.draw();
    }
    return `source slot-${number % LOOKS}`;
  }

  draw() {
    if (!this.looks.size) return this.legend.replaceChildren();
    const own = element("li", {}, element("span", { class: "look plain" }, "Aa"), "the target's own");
    const others = [...this.looks.keys()].map((name) => {
      const about = ABOUT.get(name);
      return element("li", { title: about }, element("span", { class: `look ${this.look(name)}` }, "Aa"), about ? `${name}, ${about}` : name);
    });
    this.legend.replaceChildren(...others, own);
  }
}

/** Names of one answer's sources by number. Trees hold numbers alone, tokens say the names too. */
export class SourceNames {
  constructor() {
    this.names = new Map();
  }

  learn(number, name) {
    if (number !== TARGET && name) this.names.set(number, name);
  }

  of(number) {
    return number === TARGET ? null : (this.names.get(number) ?? `draft ${number}`);
  }
}
