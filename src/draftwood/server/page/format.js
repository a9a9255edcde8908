// Numbers and tokens as people read them.

export const NONE = "–";

export function speed(tokensPerSecond) {
  if (!known(tokensPerSecond)) return NONE;
  return tokensPerSecond.toFixed(tokensPerSecond < 99.95 ? 1 : 0);
}

export function times(ratio) {
  return known(ratio) ? `${ratio.toFixed(2)}×` : NONE;
}

export function decimals(value, digits = 2) {
  return known(value) ? value.toFixed(digits) : NONE;
}

export function percent(share) {
  if (!known(share)) return NONE;
  const value = share * 100;
  if (value > 0 && value < 1) return "<1 %";
  return `${value > 99 && value < 100 ? 99 : Math.round(value)} %`;
}

export function milliseconds(seconds) {
  if (!known(seconds)) return NONE;
  const value = seconds * 1000;
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ms`;
}

export function count(value, noun) {
  return `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;
}

/** A token with its white space made visible; `most` characters at the most. */
export function visible(text, most = 14) {
  if (text === "") return "∅"; // part of a character whose other bytes are in the next token
  const shown = Array.from(text, (each) => SHOWN.get(each) ?? each);
  return shown.length > most ? `${shown.slice(0, most - 1).join("")}…` : shown.join("");
}

const SHOWN = new Map([[" ", "·"], ["\n", "↵"], ["\t", "⇥"], ["\r", "␍"], ["\u00a0", "⍽"]]);

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}
