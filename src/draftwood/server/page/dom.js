// Elements are made here and never from markup: whatever a server or a model says becomes a text node.

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  return document.getElementById(id);
}

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawing(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

export function icon(name) {
  return drawing("svg", { "aria-hidden": "true" }, drawing("use", { href: `#i-${name}` }));
}

export function button(label, iconName, act, attributes = {}) {
  const made = element("button", { type: "button", class: "button quiet small", ...attributes }, icon(iconName), label);
  made.addEventListener("click", act);
  return made;
}

/** Call `act` once in the next frame, however often it was asked for. A hidden page has no frames: a timer stands in. */
export function perFrame(act) {
  let frame = 0;
  let timer = 0;
  const run = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = 0;
    act();
  };
  return () => {
    if (timer) return;
    frame = requestAnimationFrame(run);
    timer = setTimeout(run, 300);
  };
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
