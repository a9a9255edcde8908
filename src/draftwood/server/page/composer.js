// Where the question is typed. Enter sends, Shift+Enter breaks the line; what composes a character with Enter does not send.

import { byId } from "./dom.js";

export class Composer {
  constructor({ ask, stop }) {
    this.text = byId("question");
    this.send = byId("send");
    this.halt = byId("stop");
    this.busy = false;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      const question = this.text.value.trim();
      if (question && !this.busy && ask(question)) this.put("");
    });
    this.halt.addEventListener("click", stop);
    this.text.addEventListener("input", () => this.fit());
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    this.fit();
  }

  put(text) {
    this.text.value = text;
    this.fit();
  }

  /** As high as the text. */
  fit() {
    this.text.style.height = "auto";
    this.text.style.height = `${this.text.scrollHeight}px`;
    this.send.disabled = this.text.value.trim() === "";
  }

  setBusy(busy) {
    this.busy = busy;
    const held = document.activeElement === this.send || document.activeElement === this.halt;
    this.send.hidden = busy;
    this.halt.hidden = !busy;
    if (held) (busy ? this.halt : this.text).focus();
  }
}
