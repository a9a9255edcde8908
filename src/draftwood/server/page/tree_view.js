// A draft tree as a drawing, and as a table for those who would rather read it.

import { drawing, element } from "./dom.js";
import { percent, visible } from "./format.js";
import { ending, summary } from "./rounds.js";
import { HEIGHT, layout } from "./tree_layout.js";

const SAID = { root: "root, the token before", accepted: "accepted", rejected: "rejected", target: "the target's own" };

export function treeDrawing(round, sources, names) {
  const { nodes, width, height } = layout(round);
  const { drafted, accepted } = summary(round);
  const label = `Draft tree: ${drafted} drafted, ${accepted} accepted. Emitted: ${round.emitted.join("")}`;
  const edges = nodes.filter((node) => node.parent).map(edge);
  const shapes = nodes.map((node) => shape(node, sources, names));
  return drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...edges, ...shapes);
}

function edge(node) {
  const from = { x: node.parent.x + node.parent.width, y: node.parent.y };
  const bend = Math.min(16, (node.x - from.x) / 2);
  const d = from.y === node.y
    ? `M${from.x} ${from.y}H${node.x}`
    : `M${from.x} ${from.y}h4C${from.x + bend} ${from.y} ${from.x + 6} ${node.y} ${from.x + 6 + bend} ${node.y}H${node.x}`;
  const kind = node.kind === "target" ? "accepted" : node.kind;
  return drawing("path", { class: `edge ${kind}`, d });
}

function shape(node, sources, names) {
  const look = node.kind === "root" || node.kind === "target" ? "" : sources.look(names.of(node.source)).replace("source ", "");
  const said = [`${JSON.stringify(node.full)}: ${SAID[node.kind]}`]; // quoted, so that spaces are seen
  if (look) said.push(`from ${names.of(node.source)}`);
  if (node.chance !== null) said.push(`the drafter gave it ${percent(node.chance)}`);
  const parts = [
    drawing("title", {}, said.join(", ")),
    drawing("rect", { x: node.x, y: node.y - HEIGHT / 2, width: node.width, height: HEIGHT, rx: 8 }),
    drawing("text", { class: "word", x: node.x + 9, y: node.y + 4.5 }, node.text),
  ];
  if (node.chance !== null) parts.push(drawing("text", { class: "chance", x: node.x + node.width - 8, y: node.y + 4, "text-anchor": "end" }, percent(node.chance)));
  return drawing("g", { class: `node ${node.kind} ${look}`, "data-node": node.number }, ...parts);
}

export function treeTable(round, names) {
  const { own } = ending(round);
  const accepted = new Set(round.accepted);
  const rows = round.texts.map((text, node) => {
    const root = round.parents[node] < 0;
    return row(
      String(node), visible(text, 40), root ? "–" : String(round.parents[node]), root ? "–" : names.of(round.sources[node]),
      root ? "–" : percent(round.probability?.[node]), root ? "root" : accepted.has(node) ? "accepted" : "rejected",
    );
  });
  if (own !== null) rows.push(row("–", visible(own, 40), "–", "target", "–", "emitted"));
  const head = element("tr", {}, ...["node", "token", "after", "source", "drafter’s probability", "outcome"].map((name) => element("th", { scope: "col" }, name)));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  return element("details", { class: "nodes" }, element("summary", {}, "The same as a table"), element("div", {}, table));
}

function row(...cells) {
  return element("tr", {}, ...cells.map((text, i) => element("td", i === 1 ? { class: "word" } : {}, text)));
}
