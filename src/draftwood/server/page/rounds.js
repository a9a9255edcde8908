// The rounds that the page keeps: the newest ones of the whole conversation, so that a long one does not fill the memory.

export const KEPT = 2000;

export class Rounds {
  constructor(most = KEPT) {
    this.most = most;
    this.kept = new Map(); // "answer/index" -> round, oldest first
  }

  put(answer, round) {
    this.kept.set(`${answer}/${round.index}`, round);
    if (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value);
  }

  get(answer, index) {
    return this.kept.get(`${answer}/${index}`) ?? null;
  }

  clear() {
    this.kept.clear();
  }
}

/** A round as the API sends it, with the root as node 0. `before` is the text of the newest token before it, "" at the start. */
export function withRoot(round, before) {
  return {
    ...round,
    texts: [before, ...round.texts],
    parents: [-1, ...round.parents],
    sources: [-1, ...round.sources],
    probability: [null, ...(round.probability ?? [])],
  };
}

/** What one round did, in numbers. */
export function summary(round) {
  return { drafted: round.parents.length - 1, accepted: round.accepted.length, emitted: round.emitted.length };
}

/** The last accepted node, 0 for the root, and the text the target added behind it; null if the answer ended before that. */
export function ending(round) {
  return { last: round.accepted.at(-1) ?? 0, own: round.emitted[round.accepted.length] ?? null };
}
