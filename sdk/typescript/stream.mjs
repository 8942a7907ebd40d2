// What comes while a turn goes on: partial messages, hook events; and content longer than a line may be.

import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { query } from "@anthropic-ai/claude-agent-sdk";
import { ask, options, plain, resultOf, run, say } from "./common.mjs";

const FIELDS = ["text", "thinking", "partial_json", "name", "stop_reason"];

/** The parts of a message, a word for each. */
function events(seen) {
  for (const one of seen.filter((each) => each.type === "stream_event")) {
    const detail = one.event.delta ?? one.event.content_block ?? {};
    const fields = FIELDS.filter((name) => name in detail).map((name) => detail[name]);
    say("event", one.event.type, detail.type ?? "", plain(fields));
  }
}

/** One query of which nothing is printed. */
async function askQuietly(prompt, more) {
  const seen = [];
  for await (const message of query({ prompt, options: options(more) })) seen.push(message);
  return seen;
}

await run({
  async partial() {
    events(await ask("say it in pieces", { includePartialMessages: true }));
  },
  async partial_call() {
    events(await ask("call in pieces", { includePartialMessages: true, allowedTools: ["Bash"] }));
  },
  async hook_events() {
    const called = async () => ({ systemMessage: "seen" });
    const hooks = { PreToolUse: [{ matcher: "Bash", hooks: [called] }] };
    const seen = await ask("run it", { includeHookEvents: true, hooks, allowedTools: ["Bash"] });
    for (const one of seen.filter((each) => ["hook_started", "hook_response"].includes(each.subtype))) {
      say(one.subtype, one.hook_event, one.hook_name, one.outcome ?? "");
    }
  },
  async long_text() {
    const seen = await askQuietly("say a lot");
    const isLong = resultOf(seen).result.length > 100_000;
    say("ends", resultOf(seen).subtype, "whole or cut", isLong ? "True" : "False");
  },
  async long_result() {
    writeFileSync("big.txt", `${"x".repeat(100)}\n${"y".repeat(2_000_000)}`);
    const seen = await askQuietly("read the big one", { allowedTools: ["Read"] });
    say("ends", resultOf(seen).subtype, plain(resultOf(seen).result));
    rmSync("big.txt");
  },
  async long_call() {
    const text = "\x01".repeat(200_000);
    const allow = (updatedInput) => ({
      hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "allow", updatedInput },
    });
    const moved = async ({ tool_input }) => allow({ ...tool_input, file_path: resolve("moved.txt") });
    const made = async ({ tool_input }) =>
      allow({ ...tool_input, content: `${tool_input.content.slice(0, 100_000)}…` });
    for (const called of [moved, made]) {
      const hooks = { PreToolUse: [{ matcher: "Write", hooks: [called] }] };
      const seen = await askQuietly(`write ${resolve("long.txt")}: ${text}`, { hooks, allowedTools: ["Write"] });
      say("ends", resultOf(seen).subtype, plain(resultOf(seen).result));
      for (const name of ["long.txt", "moved.txt"].filter((each) => existsSync(each))) {
        say(name, "is whole", readFileSync(name, "utf8") === text ? "True" : "False");
        rmSync(name);
      }
    }
  },
});
