// Copying, also where the page is not served from this machine or over HTTPS: there browsers have no clipboard API.

import { element } from "./dom.js";

/** True if the text is on the clipboard now. */
export async function copied(text) {
  if (navigator.clipboard) {
    const done = await navigator.clipboard.writeText(text).then(() => true, () => false);
    if (done) return true;
  }
  const before = document.activeElement;
  const box = element("textarea", { class: "hidden", "aria-hidden": "true" });
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  before?.focus();
  return done;
}
