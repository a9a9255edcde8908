// One question with its answer: tokens, what they came from, what can be done with them.

import { AnswerText } from "./answer_text.js";
import { button, element } from "./dom.js";
import { count, decimals, speed } from "./format.js";

const ENDS = { length: "ended by max tokens", abort: "ended by the server", error: "ended by an error" };

export class Answer {
  /** `act` has choose(answer, round), retry(answer), measure(answer), copy(text, button). */
  constructor(number, question, run, { sources, lossy, act }) {
    this.number = number;
    this.question = question;
    this.run = run;
    this.lossy = lossy;
    this.sources = sources;
    this.act = act;
    this.text = new AnswerText(sources, run.names, (round) => act.choose(this, round));
    this.state = element("p", { class: "waiting" }, "Reading the question");
    this.foot = element("div");
    this.extra = element("div");
    this.asked = element("div", { class: "question" }, element("p", {}, question));
    this.node = element("article", { class: "answer", "aria-label": `Answer ${number + 1}` }, this.state, this.text.node, this.foot, this.extra);
    this.text.node.classList.add("writing");
    this.text.node.hidden = true;
  }

  flush(options) {
    this.text.flush(options);
    if (this.run.tokens && this.text.node.hidden) {
      this.text.node.hidden = false;
      this.state.hidden = true;
    }
  }

  /** The answer has ended, well or not. */
  end(trouble = null) {
    this.flush({ all: true });
    this.text.node.classList.remove("writing");
    this.state.hidden = true;
    const { run } = this;
    if (run.tokens) this.foot.replaceChildren(this.shares(), this.under());
    else if (!trouble) this.foot.replaceChildren(element("p", { class: "under" }, run.stopped ? "Stopped before the first token" : "The answer is empty", this.acts()));
    if (trouble) this.extra.replaceChildren(troubleBox(trouble, () => this.act.retry(this)));
  }

  shares() {
    const parts = [...this.run.bySource].sort(([a], [b]) => (a === null) - (b === null));
    const box = element("div", { class: "shares", role: "img", "aria-label": parts.map(([name, tokens]) => `${name ?? "target"} ${tokens}`).join(", ") });
    for (const [name, tokens] of parts) {
      const share = element("i", { class: this.sources.look(name).replace("source ", ""), title: `${name ?? "the target's own"}: ${count(tokens, "token")}` });
      share.style.flex = `${tokens} 1 0`;
      box.append(share);
    }
    return box;
  }

  under() {
    const { run } = this;
    const tokens = run.usage?.completion_tokens ?? run.tokens;
    const drafted = run.tokens - (run.bySource.get(null) ?? 0);
    const { speculation, temperature, seed } = run.request;
    const facts = [
      element("b", {}, speculation.enabled ? speculation.recipe ?? "default recipe" : "plain decoding"),
      this.lossy ? element("span", { class: "badge lossy", title: "This recipe may change what the model would have written" }, "lossy") : null,
      count(tokens, "token"),
      speculation.enabled ? (drafted ? `${drafted.toLocaleString("en")} drafted` : "none drafted") : null,
      `${speed(run.meter.speed())} per second`,
      speculation.enabled && run.totals.rounds ? `${decimals(run.perPass())} per pass` : null,
      temperature > 0 ? `temperature ${temperature}, seed ${seed}` : null,
      run.stopped ? "stopped" : ENDS[run.finish] ? `${ENDS[run.finish]}${run.finish !== "length" && run.detail ? `: ${run.detail}` : ""}` : null,
      run.metrics?.disabled ? `drafter disabled: ${run.metrics.disabled}` : null,
    ].filter((fact) => fact !== null);
    const shown = facts.map((fact) => (typeof fact === "string" ? element("span", {}, fact) : fact));
    return element("div", { class: "under" }, ...shown, this.acts());
  }

  acts() {
    const { act, run } = this;
    const first = this.text.order.at(-1);
    const small = (label, icon, run_) => button("", icon, run_, { "aria-label": label, title: label, class: "button icon quiet small" });
    const copy = small("Copy", "copy", () => act.copy(run.text, copy));
    return element("span", { class: "acts" },
      first === undefined ? null : small("Open the rounds", "tree", () => act.choose(this, first, { focus: true })),
      run.tokens ? copy : null,
      small("Ask again", "retry", () => act.retry(this)),
    );
  }

  /** Beside the same question decoded plainly: `plain` is the finished run. */
  compare(plain) {
    const ours = this.run.meter.speed();
    const theirs = plain.meter.speed();
    const most = Math.max(ours ?? 0, theirs ?? 0, 1e-9);
    const line = (name, value, kind) => [
      element("dt", {}, name),
      element("dd", {}, element("meter", { class: kind, min: 0, max: most, value: value ?? 0 })),
      element("dd", {}, `${speed(value)} per second`),
    ];
    const list = element("dl", {}, ...line("with drafts", ours, ""), ...line("plain", theirs, "plain"));
    this.extra.replaceChildren(element("div", { class: "compared" }, list, element("p", {}, sameText(this.run, plain, this.lossy))));
  }
}

export function troubleBox(trouble, again) {
  const code = [trouble.code, trouble.param].filter(Boolean).join(", ");
  return element("div", { class: "trouble", role: "alert" },
    element("p", {}, element("b", {}, trouble.title ?? "Something went wrong")),
    element("p", {}, trouble.message),
    trouble.hint ? element("p", { class: "hint" }, trouble.hint) : null,
    code ? element("p", { class: "code" }, code) : null,
    button("Try again", "retry", again, { class: "button small" }),
  );
}

function sameText(run, plain, lossy) {
  if (run.stopped || plain.stopped) return "One of the two was stopped, so only their speeds can be compared.";
  if (run.text === plain.text) return "Both texts are the same, character by character.";
  if (lossy) return "The texts differ: this recipe is lossy.";
  if (run.request.temperature > 0) return "The texts differ: two samples of the same distribution. With the rule “match” the same seed gives the same text.";
  return "The texts differ, though both are greedy. In floating-point arithmetic near ties can do that.";
}

