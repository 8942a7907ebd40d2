// What a host asks besides prompts: how full the context is, what there is, files put back; and errors of the model.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { query } from "@anthropic-ai/claude-agent-sdk";
import { Client, options, run, say, show } from "./common.mjs";

const flag = (value) => (value ? "True" : "False");

/** What a host sees of a request that the model's provider refuses. */
async function failure(prompt) {
  try {
    for await (const message of query({ prompt, options: options() })) {
      show(message);
      if (message.type !== "result") continue;
      say("is_error", flag(message.is_error), "status", message.api_error_status ?? "None");
    }
  } catch {
    say("raised");
  }
}

await run({
  async usage() {
    const talk = new Client();
    await talk.answer("how full is it");
    const answered = await talk.query.getContextUsage();
    const { totalTokens, maxTokens, percentage, categories } = answered;
    say("total", flag(0 < totalTokens && totalTokens < maxTokens), "model", answered.model);
    say("percentage", flag(0 <= percentage && percentage <= 100));
    say("categories", flag(categories.length > 0));
    say("sum", flag(categories.reduce((sum, one) => sum + one.tokens, 0) >= totalTokens));
    await talk.close();
  },
  async info() {
    const talk = new Client();
    say("commands", flag((await talk.query.supportedCommands()).length > 0));
    say("agents", flag((await talk.query.supportedAgents()).length > 0));
    say("models", flag((await talk.query.supportedModels()).length > 0));
    say("account", flag(typeof (await talk.query.accountInfo()) === "object"));
    await talk.close();
  },
  async rewind() {
    writeFileSync("kept.txt", "before");
    const extraArgs = { "replay-user-messages": null };
    const talk = new Client({ permissionMode: "acceptEdits", enableFileCheckpointing: true, extraArgs });
    const seen = await talk.answer("change the file");
    const prompt = seen.find((one) => one.type === "user" && one.uuid).uuid;
    const files = () => say("kept.txt", readFileSync("kept.txt", "utf8"), "new.txt", flag(existsSync("new.txt")));
    files();
    await talk.query.rewindFiles(prompt);
    files();
    await talk.close();
  },
  async bad_model() {
    await failure("a bad name");
  },
  async no_key() {
    await failure("no key");
  },
  async bad_request() {
    await failure("a bad request");
  },
  async thinking_tokens() {
    const talk = new Client();
    await talk.answer("think less: before");
    await talk.query.setMaxThinkingTokens(2048);
    await talk.answer("think less: with tokens");
    await talk.query.setMaxThinkingTokens(0);
    await talk.answer("think less: with none");
    await talk.close();
  },
});
