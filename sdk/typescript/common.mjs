// What the programs share: options that name the program under test, and one plain line for each thing seen.
//
// Takes DECURION (the program's path) from the environment and the names of sections as arguments; prints lines
// that are the same as those of the Python programs.

import { writeSync } from "node:fs";
import { query } from "@anthropic-ai/claude-agent-sdk";

export const MODEL = "claude-sonnet-4-5";

/** Options of a program that uses decurion. */
export function options(more = {}) {
  return { model: MODEL, ...more, pathToClaudeCodeExecutable: process.env.DECURION };
}

/** JSON that is the same in both languages. */
export function plain(value) {
  return JSON.stringify(sorted(value));
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])]));
}

/** The text of a tool's result, without what is different each time: the id of an agent and what it used. */
export function textOf(content) {
  const isList = Array.isArray(content);
  const text = isList ? content.map((block) => block.text ?? `<${block.type}>`).join("") : (content ?? "");
  return text.split("agentId:")[0].trim();
}

/** What a message says, a line for each block. */
export function lines(message) {
  switch (message.type) {
    case "assistant": {
      const said = message.message.content.flatMap((block) => {
        if (block.type === "text") return [`says ${plain(block.text)}`];
        if (block.type === "thinking") return [`thinks ${plain(block.thinking)}`];
        if (block.type === "tool_use") return [`calls ${block.name} ${plain(block.input)}`];
        return [];
      });
      return message.error ? [...said, `error ${message.error}`] : said;
    }
    case "user": {
      const content = message.message.content;
      const blocks = typeof content === "string" ? [{ type: "text", text: content }] : content;
      return blocks.flatMap((block) => {
        if (block.type === "text") return [`hears ${plain(block.text)}`];
        if (block.type !== "tool_result") return [];
        return [`${block.is_error ? "fails" : "gets"} ${plain(textOf(block.content))}`];
      });
    }
    case "result": {
      const errors = message.errors?.length ? ` errors=${plain(message.errors)}` : "";
      const result = message.result === undefined || message.result === null ? "" : ` ${plain(message.result)}`;
      return [`ends ${message.subtype} turns=${message.num_turns}${result}${errors}`];
    }
    case "system":
      return systemLines(message);
    default:
      return [];
  }
}

/** What is said of tasks. What else the system says is printed by the programs that ask for it. */
function systemLines(data) {
  if (data.subtype === "task_started") {
    return [`task started: ${data.task_type} ${plain(data.description)} by ${data.tool_use_id}`];
  }
  if (data.subtype === "task_notification") {
    return [`task ended: ${data.status} ${plain(data.summary)} by ${data.tool_use_id}`];
  }
  return [];
}

/** Prints what a message says; what an agent says is indented, with the call that started it. */
export function show(message) {
  const parent = message.parent_tool_use_id;
  for (const line of lines(message)) {
    const same = line.replace(/127\.0\.0\.1:\d+/g, "127.0.0.1:PORT").replace(/req_[0-9a-f]+/g, "req_…").replace(/The tools are: [^<"]*/g, "The tools are: …");
    say(parent ? `  [${parent}] ${same}` : same);
  }
}

/** The same without what agents say, whose order against the root's is not fixed in the background. */
export function showRoot(message) {
  if (!message.parent_tool_use_id) show(message);
}

/** Prints a line at once: another process may be waiting for it. */
export function say(...words) {
  writeSync(1, `${words.join(" ")}\n`);
}

/** One query; prints all that comes and gives it back. */
export async function ask(prompt, more) {
  const seen = [];
  for await (const message of query({ prompt, options: options(more) })) {
    seen.push(message);
    show(message);
  }
  return seen;
}

/** The first init of what was seen. */
export function initOf(seen) {
  return seen.find((one) => one.type === "system" && one.subtype === "init");
}

/** The last result of what was seen. */
export function resultOf(seen) {
  return seen.findLast((one) => one.type === "result");
}

/** A conversation of many turns over one query. */
export class Client {
  #waiting = [];
  #wake = () => {};
  #closed = false;

  constructor(more) {
    this.query = query({ prompt: this.#input(), options: options(more) });
    this.messages = this.query[Symbol.asyncIterator]();
  }

  async *#input() {
    while (!this.#closed || this.#waiting.length > 0) {
      const next = this.#waiting.shift();
      if (next) yield next;
      else await new Promise((wake) => (this.#wake = wake));
    }
  }

  /** Sends a prompt. */
  send(content, more = {}) {
    this.#waiting.push({ type: "user", message: { role: "user", content }, parent_tool_use_id: null, ...more });
    this.#wake();
  }

  /** Every message up to the next result, printed. */
  async response(shown = show) {
    const seen = [];
    for (;;) {
      const { value, done } = await this.messages.next();
      if (done) return seen;
      seen.push(value);
      shown(value);
      if (value.type === "result") return seen;
    }
  }

  /** One turn. */
  async answer(content, shown = show) {
    this.send(content);
    return await this.response(shown);
  }

  /** Ends the input and waits until the session is over; what it still says is not printed. */
  async close() {
    this.#closed = true;
    this.#wake();
    try {
      while (!(await this.messages.next()).done);
    } catch {
      // The SDK throws when the last result was an error, which has been printed.
    }
  }
}

/** Runs the sections named as arguments, or all of them. */
export async function run(sections) {
  const wanted = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(sections);
  for (const name of wanted) {
    say(`== ${name}`);
    let timer;
    const limit = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error("a time-out")), 60_000)));
    try {
      await Promise.race([sections[name](), limit]);
    } catch (error) {
      say(`raised ${error.message.split("\n")[0]}`);
    } finally {
      clearTimeout(timer);
    }
  }
  process.exit(0);
}
