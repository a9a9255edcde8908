// One answer being written: what has arrived of it, in numbers and text. It draws nothing.

import { chatChunks } from "./api.js";
import { Meter } from "./meter.js";
import { summary, withRoot } from "./rounds.js";
import { SourceNames, TARGET } from "./sources.js";

export class Run {
  constructor(request) {
    this.request = request;
    this.abort = new AbortController();
    this.names = new SourceNames();
    this.meter = new Meter();
    this.text = "";
    this.newest = ""; // the text of the newest token: the root of the next round
    this.tokens = 0;
    this.bySource = new Map(); // name, null for the target -> tokens
    this.totals = { rounds: 0, drafted: 0, accepted: 0, emitted: 0 };
    this.usage = null;
    this.metrics = null;
    this.finish = null;
    this.detail = null;
    this.stopped = false;
  }

  /** Read the answer to its end. `tell(tokens, rounds)` gets what each chunk brought. Stopping is not an error. */
  async read(tell) {
    try {
      for await (const chunk of chatChunks(this.request, this.abort.signal)) this.take(chunk, tell);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      this.stopped = true;
    }
  }

  stop() {
    this.abort.abort();
  }

  take(chunk, tell) {
    const choice = chunk.choices?.[0];
    const content = choice?.delta?.content ?? "";
    const told = choice?.provenance ?? [];
    // Without provenance (speculation off) a chunk is plain text; its tokens are counted by the usage at the end.
    const tokens = told.length || !content ? told : [{ text: content, source: TARGET, source_name: "", round: null }];
    for (const token of tokens) {
      this.names.learn(token.source, token.source_name);
      const name = this.names.of(token.source);
      this.bySource.set(name, (this.bySource.get(name) ?? 0) + 1);
    }
    const rounds = [];
    for (const sent of chunk.rounds ?? []) {
      const round = withRoot(sent, this.newest);
      rounds.push(round);
      this.newest = round.emitted.at(-1) ?? this.newest;
      const { drafted, accepted, emitted } = summary(round);
      this.totals.rounds += 1;
      this.totals.drafted += drafted;
      this.totals.accepted += accepted;
      this.totals.emitted += emitted;
    }
    this.text += content;
    this.tokens += tokens.length;
    if (tokens.length) this.meter.add(tokens.length, performance.now());
    if (choice?.finish_reason) {
      this.finish = choice.finish_reason;
      this.detail = choice.finish_detail ?? null;
    }
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.metrics) this.metrics = chunk.metrics.speculative_decoding ?? null;
    if (tokens.length || rounds.length) tell(tokens, rounds);
  }

  /** Tokens per target pass; a round is one pass. */
  perPass() {
    return this.totals.rounds ? this.totals.emitted / this.totals.rounds : null;
  }

  accepted() {
    if (this.metrics) return this.metrics.draft_acceptance_rate ?? null;
    return this.totals.drafted ? this.totals.accepted / this.totals.drafted : null;
  }
}
