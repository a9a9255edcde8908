// The page: a conversation, the figures beside it, and the round of a chosen token.

import { Answer, troubleBox } from "./answer.js";
import { serverInfo } from "./api.js";
import { copied } from "./clipboard.js";
import { Composer } from "./composer.js";
import { byId, element, perFrame } from "./dom.js";
import { count, speed } from "./format.js";
import { keyForm } from "./key_form.js";
import { Live } from "./live.js";
import { RoundPanel } from "./round_panel.js";
import { Rounds } from "./rounds.js";
import { Run } from "./run.js";
import { Scrolling } from "./scrolling.js";
import { Settings } from "./settings.js";
import { Sources } from "./sources.js";

const log = byId("log");
const welcome = byId("welcome");
const rounds = new Rounds();
const sources = new Sources(byId("legend"));
const settings = new Settings();
const scrolling = new Scrolling();
const panel = new RoundPanel(sources, (answer, index) => rounds.get(answer.number, index), say);
const live = new Live(sources, (answer, index) => choose(answer, index));
const composer = new Composer({ ask, stop });

let info = null;
const answers = [];
let made = 0; // answers ever, so that a number is never given twice
let running = null; // the run that Stop ends

const draw = perFrame(() => {
  answers.at(-1)?.flush();
  scrolling.follow();
  live.tick();
  panel.refresh();
});

function ask(question) {
  if (running || !settings.good()) return false;
  const system = settings.systemPrompt();
  const messages = [
    ...(system ? [{ role: "system", content: system }] : []),
    ...answers.filter((answer) => answer.run.text).flatMap((answer) => [{ role: "user", content: answer.question }, { role: "assistant", content: answer.run.text }]),
    { role: "user", content: question },
  ];
  const run = new Run({ model: info?.model ?? "default", messages, ...settings.request() });
  const lossy = run.request.speculation.enabled && settings.isLossy(run.request.speculation.recipe);
  const answer = new Answer(made, question, run, { sources, lossy, act: { choose, retry, copy } });
  made += 1;
  answers.push(answer);
  welcome.remove();
  log.append(answer.asked, answer.node);
  scrolling.toEnd();
  say("Answering");
  write(answer);
  return true;
}

async function write(answer) {
  const { run } = answer;
  const trouble = await busyWith(run, (tokens, news) => {
    answer.text.push(tokens);
    if (live.run !== run) live.begin(answer); // the figures of the last answer stand until there are new ones
    for (const round of news) rounds.put(answer.number, round);
    live.add(news);
    draw();
  });
  answer.end(trouble);
  live.draw();
  scrolling.follow();
  update();
  if (trouble) return;
  say(run.stopped ? "Stopped" : `Answer complete, ${count(run.tokens, "token")}, ${speed(run.meter.speed())} per second`);
}

/** Read a run to its end while Stop belongs to it; the trouble, or null. */
async function busyWith(run, tell) {
  running = run;
  composer.setBusy(true);
  update();
  try {
    await run.read(tell);
    return null;
  } catch (trouble) {
    return trouble;
  } finally {
    running = null;
    composer.setBusy(false);
    update();
  }
}

function stop() {
  running?.stop();
}

/** Ask a question again, with the settings of now. Answers behind it belonged to the old answer and go. */
function retry(answer) {
  if (running || !settings.good()) return;
  drop(answers.indexOf(answer));
  ask(answer.question);
}

/** Take the answers from this one on off the page. */
function drop(from) {
  panel.close();
  live.reset();
  for (const each of answers.splice(from)) {
    each.asked.remove();
    each.node.remove();
  }
}

function clear() {
  stop();
  drop(0);
  rounds.clear();
  log.append(welcome);
  log.scrollTop = 0;
  update();
  say("Conversation cleared");
  composer.text.focus();
}

function choose(answer, index, options) {
  panel.show(answer, index, options);
  if (live.strip.answer === answer) live.strip.mark(index);
}

/** The last question once more without speculation: its speed becomes the baseline. */
async function measure() {
  const answer = measurable();
  if (running || !answer) return;
  const run = new Run({ ...answer.run.request, speculation: { enabled: false, provenance: true, rounds: true } });
  const label = byId("measure").lastElementChild;
  say("Measuring plain decoding");
  const trouble = await busyWith(run, () => {
    label.textContent = `Plain: ${speed(run.meter.speed())} per second`;
  });
  label.textContent = "Measure plain";
  if (trouble) answer.extra.replaceChildren(troubleBox(trouble, measure));
  else if (run.meter.speed()) {
    live.setPlain(run.meter.speed(), "measured with this question");
    answer.compare(run);
    say(`Plain decoding: ${speed(run.meter.speed())} tokens per second`);
  }
  scrolling.follow();
}

async function copy(text, from) {
  const done = await copied(text);
  say(done ? "Copied" : "The browser did not allow copying");
  if (!done) return;
  from.classList.add("done");
  setTimeout(() => from.classList.remove("done"), 1500);
}

function update() {
  byId("clear").disabled = !answers.length;
  byId("measure").disabled = Boolean(running) || !measurable();
}

/** The last answer with a speed. */
function measurable() {
  return answers.findLast((answer) => answer.run.meter.speed());
}

function say(text) {
  byId("status").textContent = text;
}

async function start() {
  try {
    info = await serverInfo();
  } catch (trouble) {
    const again = () => {
      box.remove();
      start();
    };
    const box = trouble.status === 401 ? keyForm(again) : troubleBox(trouble, again);
    welcome.before(box);
    box.querySelector("input")?.focus();
    return;
  }
  const facts = [info.model, info.backend, info.device].filter(Boolean);
  byId("facts").replaceChildren(...facts.map((fact) => element("span", {}, fact)));
  byId("facts").title = `${facts.join(", ")}, draftwood ${info.version}`;
  settings.offer(info);
  live.setPlain(info.plain_tokens_per_second, "measured at the start");
}

for (const example of byId("examples").children) {
  example.addEventListener("click", () => ask(example.querySelector("span").textContent));
}
byId("clear").addEventListener("click", clear);
byId("measure").addEventListener("click", measure);
start();
composer.text.focus();
