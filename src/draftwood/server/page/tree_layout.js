// Where the nodes of a draft tree stand: depth to the right, branches downwards, what was emitted in a line along the top.

import { visible } from "./format.js";
import { ending } from "./rounds.js";

const LINE = 36; // from branch to branch
export const HEIGHT = 26; // of a node
const LETTER = 7.6;
const GAP = 30; // between columns, for the edges
const NARROWEST = 34;

/**
 * Nodes `{number, text, full, x, y, width, kind, source, chance, parent}` and the size of the whole. `kind` is root, accepted,
 * rejected, or target for the token that the target itself added. A first child stands level with its parent, the others
 * below it, as high as there is room.
 */
export function layout(round) {
  const accepted = new Set(round.accepted);
  const children = childrenOf(round, accepted);
  const nodes = [];
  const free = []; // by depth: the first line without a node
  const stack = [{ number: 0, parent: null, above: -1 }];
  while (stack.length) {
    const { number, parent, above } = stack.pop();
    const chain = chainFrom(number, children);
    const depth = parent ? parent.depth + 1 : 0;
    const line = Math.max(above + 1, ...chain.map((_, i) => free[depth + i] ?? 0));
    let last = parent;
    chain.forEach((each, i) => {
      last = nodeOf(round, each, depth + i, last, line, accepted);
      nodes.push(last);
      free[depth + i] = line + 1;
    });
    // The deepest are placed first, each below its elder sibling: so edges never cross.
    for (const node of nodes.slice(-chain.length)) {
      for (const child of (children[node.number] ?? []).slice(1).reverse()) stack.push({ number: child, parent: node, above: line });
    }
  }
  const { width, lines } = arrange(nodes);
  return { nodes, width: width + 8, height: lines * LINE + 8 };
}

const OWN = "own"; // stands for the token that the target itself added

/** Accepted ones, or the target's own token, first; the others keep their order. */
function childrenOf(round, accepted) {
  const children = round.parents.map(() => []);
  round.parents.forEach((parent, number) => parent >= 0 && children[parent].push(number));
  for (const each of children) each.sort((a, b) => accepted.has(b) - accepted.has(a));
  const { last, own } = ending(round);
  if (own !== null) children[last].unshift(OWN);
  return children;
}

function chainFrom(number, children) {
  const chain = [number];
  while (children[chain.at(-1)]?.length) chain.push(children[chain.at(-1)][0]);
  return chain;
}

function nodeOf(round, number, depth, parent, line, accepted) {
  const place = { number, depth, parent, line };
  if (number === OWN) {
    const full = ending(round).own;
    return { ...place, number: null, text: visible(full), full, kind: "target", source: -1, chance: null };
  }
  const full = round.texts[number];
  if (number === 0) return { ...place, text: full === "" ? "prompt" : visible(full), full, kind: "root", source: -1, chance: null };
  const kind = accepted.has(number) ? "accepted" : "rejected";
  return { ...place, text: visible(full), full, kind, source: round.sources[number], chance: round.probability[number] ?? null };
}

function arrange(nodes) {
  const widths = [];
  for (const node of nodes) {
    node.width = Math.max(NARROWEST, Array.from(node.text).length * LETTER + 18 + (node.chance === null ? 0 : 38));
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  const starts = [4];
  widths.forEach((width, depth) => starts.push(starts[depth] + width + GAP));
  for (const node of nodes) {
    node.x = starts[node.depth];
    node.y = node.line * LINE + 4 + HEIGHT / 2;
  }
  return { width: Math.max(...nodes.map((node) => node.x + node.width)), lines: Math.max(...nodes.map((node) => node.line)) + 1 };
}
