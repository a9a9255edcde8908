// Recipe and sampling of the next message. Options that would change nothing are not sent.

import { byId, element } from "./dom.js";

const KEY = "draftwood.settings";

// `neutral` changes nothing and is not sent; `empty` says what happens where nothing stands in the field.
const FIELDS = [
  { name: "temperature", label: "Temperature", note: "0 = greedy", min: 0, max: 5, step: 0.05, value: 0 },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, value: 256 },
  { name: "seed", label: "Seed", empty: "random", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, value: "" },
  { name: "top_p", label: "Top p", note: "1 = all", min: 0.01, max: 1, step: 0.01, value: 1, neutral: 1 },
  { name: "top_k", label: "Top k", note: "0 = all", min: 0, step: 1, value: 0, neutral: 0 },
  { name: "min_p", label: "Min p", note: "0 = all", min: 0, max: 1, step: 0.01, value: 0, neutral: 0 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, value: 0, neutral: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, value: 0, neutral: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", note: "1 = none", min: 0.1, max: 5, step: 0.05, value: 1, neutral: 1 },
];

// Of the draft.
const DRAFT = [
  { name: "depth", label: "Draft depth", empty: "the recipe’s", min: 1, step: 1, value: "" },
  { name: "nodes", label: "Draft nodes", empty: "the recipe’s", min: 1, step: 1, value: "" },
];
const ALL = [...FIELDS, ...DRAFT];

export class Settings {
  constructor() {
    this.recipe = byId("recipe");
    this.box = byId("sampling");
    this.toggle = byId("options");
    this.inputs = new Map(ALL.map((field) => [field.name, input(field)]));
    this.system = element("textarea", { rows: 2, placeholder: "None" });
    this.drafting = element("input", { type: "checkbox", checked: true });
    const reset = element("button", { type: "button", class: "button quiet small" }, "Reset");
    this.box.append(
      ...FIELDS.map((field) => labelled(field.label, this.inputs.get(field.name), field.note)),
      ...DRAFT.map((field) => labelled(field.label, this.inputs.get(field.name), field.note)),
      element("label", { class: "field check" }, this.drafting, element("span", {}, "Speculation")),
      labelled("System prompt", this.system, "", "whole"),
      element("div", { class: "row" }, "Each message is sent with what stands here.", reset),
    );
    this.recall();
    this.toggle.addEventListener("click", () => this.open(this.box.hidden));
    reset.addEventListener("click", () => this.reset());
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.open(false);
      this.toggle.focus();
    });
    for (const each of [this.box, this.recipe]) each.addEventListener("input", () => this.changed());
    this.changed();
  }

  /** Fill the list of recipes from what the server says about itself. */
  offer(info) {
    this.lossless = info.lossless ?? {};
    const wanted = this.stored.recipe;
    const name = (recipe) => `${recipe}${this.isLossy(recipe) ? " (lossy)" : ""}`;
    const options = info.recipes.map((recipe) => element("option", { value: recipe }, recipe === info.default_recipe ? `${name(recipe)}, default` : name(recipe)));
    this.recipe.replaceChildren(...options);
    this.recipe.value = info.recipes.includes(wanted) ? wanted : info.default_recipe;
    if (info.max_model_len) this.inputs.get("max_tokens").max = info.max_model_len;
    this.changed();
  }

  isLossy(recipe) {
    return this.lossless?.[recipe] === false;
  }

  open(wanted) {
    this.box.hidden = !wanted;
    this.toggle.setAttribute("aria-expanded", String(wanted));
    if (wanted) this.inputs.get("temperature").focus();
  }

  /** False, with the reason on show, if a value cannot be sent. */
  good() {
    const wrong = [...this.inputs.values()].find((each) => !each.checkValidity());
    if (!wrong) return true;
    this.open(true);
    wrong.reportValidity();
    return false;
  }

  /** Fields of a request. Above temperature 0 an empty seed becomes a random one, so that an answer can be had again. */
  request() {
    const values = this.values(FIELDS);
    if (values.temperature > 0 && values.seed === undefined) values.seed = Math.floor(Math.random() * 2 ** 31);
    const shown = { provenance: true, rounds: true };
    if (!this.drafting.checked) return { ...values, speculation: { enabled: false, ...shown } };
    return { ...values, speculation: { enabled: true, recipe: this.recipe.value || undefined, ...this.values(DRAFT), ...shown } };
  }

  values(fields) {
    const given = fields.map(({ name, neutral }) => [name, this.inputs.get(name).value, neutral]).filter(([, text]) => text !== "");
    return Object.fromEntries(given.map(([name, text, neutral]) => [name, Number(text), neutral]).filter(([, value, neutral]) => value !== neutral));
  }

  systemPrompt() {
    return this.system.value.trim();
  }

  reset() {
    for (const field of ALL) this.inputs.get(field.name).value = field.value;
    this.system.value = "";
    this.drafting.checked = true;
    this.changed();
  }

  changed() {
    const temperature = Number(this.inputs.get("temperature").value);
    const parts = [temperature > 0 ? `temperature ${temperature}` : "greedy", `${this.inputs.get("max_tokens").value} tokens`];
    if (!this.drafting.checked) parts.unshift("plain decoding");
    byId("summary").textContent = parts.join(", ");
    byId("lossy").hidden = !(this.drafting.checked && this.isLossy(this.recipe.value));
    for (const each of [this.recipe, ...DRAFT.map(({ name }) => this.inputs.get(name))]) each.disabled = !this.drafting.checked;
    this.keep();
  }

  recall() {
    this.stored = {};
    try {
      this.stored = JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      // nothing stored, or storage is forbidden
    }
    for (const [name, each] of this.inputs) if (this.stored[name] !== undefined) each.value = this.stored[name];
    this.system.value = this.stored.system ?? "";
    this.drafting.checked = this.stored.drafting ?? true;
  }

  keep() {
    const values = Object.fromEntries([...this.inputs].map(([name, each]) => [name, each.value]));
    this.stored = { ...values, system: this.system.value, drafting: this.drafting.checked, recipe: this.recipe.value || this.stored.recipe };
    try {
      localStorage.setItem(KEY, JSON.stringify(this.stored));
    } catch {
      // kept for this page alone
    }
  }
}

function input({ name, min, max, step, value, empty }) {
  return element("input", { type: "number", name, min, max, step, value, required: empty === undefined, placeholder: empty, inputmode: "decimal", autocomplete: "off" });
}

function labelled(label, control, note = "", extra = "") {
  return element("label", { class: `field ${extra}` }, element("span", {}, label, note ? element("small", {}, note) : null), control);
}
