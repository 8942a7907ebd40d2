// Limits of turns and money, and results that must fit a schema.

import { query } from "@anthropic-ai/claude-agent-sdk";
import { ask, options, plain, resultOf, run, say } from "./common.mjs";

const flag = (value) => (value ? "True" : "False");
const schema = {
  type: "object",
  properties: { count: { type: "integer" } },
  required: ["count"],
  additionalProperties: false,
};
const outputFormat = { type: "json_schema", schema };

/** The result of a query, also of one that the SDK ends with an exception. */
async function ending(prompt, more) {
  let result;
  try {
    for await (const message of query({ prompt, options: options(more) })) {
      if (message.type === "result") result = message;
    }
  } catch {
    say("raised");
  }
  say("ends", result.subtype, "is_error", flag(result.is_error));
  return result;
}

await run({
  async turns() {
    const result = await ending("on and on", { maxTurns: 3, allowedTools: ["Bash"] });
    say("turns", result.num_turns);
  },
  async money() {
    await ending("expensive", { maxBudgetUsd: 0.001, allowedTools: ["Bash"] });
  },
  async schema() {
    const seen = await ask("how many", { outputFormat });
    say("structured", plain(resultOf(seen).structured_output));
  },
  async reminded() {
    const seen = await ask("plain answer", { outputFormat });
    say("structured", plain(resultOf(seen).structured_output));
  },
  async hopeless() {
    await ending("never right", { outputFormat });
  },
});
