// Hooks that are functions of the host: each event, each kind of answer, one that throws and one that hangs.

import { setTimeout as pause } from "node:timers/promises";
import { Client, ask, plain, run, say } from "./common.mjs";

/** A hook that says what it was given and answers this. */
function hook(event, output, { matcher, timeout, shown = [] } = {}) {
  const called = async (given, call) => {
    const fields = shown.map((name) => ` ${name}=${plain(given[name] ?? null)}`).join("");
    say(`hook ${given.hook_event_name}${fields}${call ? ` for ${call}` : ""}`);
    const missing = ["session_id", "transcript_path", "cwd"].filter((name) => !given[name]);
    if (missing.length) say(`missing ${missing}`);
    return typeof output === "function" ? output(given) : output;
  };
  return { [event]: [{ matcher, hooks: [called], timeout }] };
}

/** An answer that belongs to one event. */
const special = (hookEventName, output) => ({ hookSpecificOutput: { hookEventName, ...output } });

const BASH = { allowedTools: ["Bash"] };

await run({
  async denied() {
    const deny = special("PreToolUse", { permissionDecision: "deny", permissionDecisionReason: "not this one" });
    const shown = ["tool_name", "tool_input", "permission_mode"];
    await ask("run it", { ...BASH, hooks: hook("PreToolUse", deny, { matcher: "Bash", shown }) });
  },
  async changed() {
    const updatedInput = { command: "echo as changed", description: "run" };
    const allow = special("PreToolUse", { permissionDecision: "allow", updatedInput });
    await ask("run it", { hooks: hook("PreToolUse", allow, { matcher: "Bash" }) });
  },
  async other_tool() {
    await ask("run it", { ...BASH, hooks: hook("PreToolUse", {}, { matcher: "Write" }) });
  },
  async after() {
    const add = special("PostToolUse", { additionalContext: "a word from the hook" });
    await ask("run it", { ...BASH, hooks: hook("PostToolUse", add, { shown: ["tool_name", "tool_input"] }) });
  },
  async replaced() {
    const other = special("PostToolUse", { updatedToolOutput: "as the hook says" });
    await ask("run it", { ...BASH, hooks: hook("PostToolUse", other) });
  },
  async halted() {
    const stop = { continue: false, stopReason: "that was enough" };
    await ask("run it", { ...BASH, hooks: hook("PostToolUse", stop) });
  },
  async prompt() {
    const add = special("UserPromptSubmit", { additionalContext: "a word from the hook" });
    await ask("the prompt", { hooks: hook("UserPromptSubmit", add, { shown: ["prompt"] }) });
  },
  async refused() {
    await ask("the prompt", { hooks: hook("UserPromptSubmit", { decision: "block", reason: "not this prompt" }) });
  },
  async stopping() {
    const decide = (given) => (given.stop_hook_active ? {} : { decision: "block", reason: "not yet" });
    await ask("stop twice", { hooks: hook("Stop", decide, { shown: ["stop_hook_active"] }) });
  },
  async agents() {
    const closely = special("SubagentStart", { additionalContext: "look closely" });
    const start = hook("SubagentStart", closely, { shown: ["agent_type"] });
    const stop = hook("SubagentStop", {}, { shown: ["agent_type", "stop_hook_active"] });
    await ask("delegate", { hooks: { ...start, ...stop } });
  },
  async compaction() {
    const talk = new Client({ hooks: hook("PreCompact", {}, { shown: ["trigger", "custom_instructions"] }) });
    await talk.answer("something to shorten");
    await talk.answer("/compact keep the numbers");
    await talk.close();
  },
  async thrown() {
    const fail = () => {
      throw new Error("the hook fell over");
    };
    await ask("run it", { ...BASH, hooks: hook("PostToolUse", fail) });
  },
  async silent() {
    const called = async (given) => {
      say(`hook ${given.hook_event_name}`);
      await pause(30_000, undefined, { ref: false });
      return {};
    };
    await ask("run it", { ...BASH, hooks: { PostToolUse: [{ hooks: [called], timeout: 1 }] } });
  },
});
