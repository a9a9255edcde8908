// Asks for the key of a server that wants one.

import { useKey } from "./api.js";
import { element } from "./dom.js";

export function keyForm(then) {
  const input = element("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key", placeholder: "API key" });
  const form = element("form", { class: "key" }, element("p", {}, "This server asks for an API key. It stays in this tab."), input, element("button", { class: "button primary" }, "Use it"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(input.value.trim());
    then();
  });
  return form;
}
