// MCP servers: in the host (results, errors, two of them), as a process, and what can be asked and changed.

import { join } from "node:path";
import { createSdkMcpServer, tool } from "@anthropic-ai/claude-agent-sdk";
import { z } from "zod";
import { Client, ask, initOf, plain, run, say } from "./common.mjs";

const text = (value, more = {}) => ({ content: [{ type: "text", text: value }], ...more });
const numbers = { a: z.number(), b: z.number() };
const add = tool("add", "Adds two numbers", numbers, async ({ a, b }) => text(String(a + b)));
const divide = tool("divide", "Divides two numbers", numbers, async () => text("not by nothing", { isError: true }));
const crash = tool("crash", "Falls over", {}, async () => {
  throw new Error("the tool fell over");
});
const shout = tool("shout", "Says it loudly", { word: z.string() }, async ({ word }) => text(word.toUpperCase()));

const calc = () => createSdkMcpServer({ name: "calc", version: "1.0.0", tools: [add, divide, crash] });
const words = () => createSdkMcpServer({ name: "words", version: "1.0.0", tools: [shout] });
const process_ = () => ({ type: "stdio", command: join(process.env.BINARIES, "mcp-scripted"), args: ["plain"] });

const allowedTools = ["mcp__calc", "mcp__words", "mcp__scripted"];

/** Prints what is said of each server. */
function status(servers) {
  for (const one of servers) say(one.name, one.status, plain((one.tools ?? []).map((each) => each.name).sort()));
}

/** What is said of the servers when none is being started any more. */
async function settled(talk) {
  for (;;) {
    const servers = await talk.query.mcpServerStatus();
    if (servers.every((one) => one.status !== "pending")) return servers;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

await run({
  async call() {
    const seen = await ask("add them", { mcpServers: { calc: calc() }, allowedTools });
    say("servers", plain(initOf(seen).mcp_servers.map((one) => [one.name, one.status])));
    say("tools", plain(initOf(seen).tools.filter((one) => one.startsWith("mcp__")).sort()));
  },
  async error() {
    await ask("divide by nothing", { mcpServers: { calc: calc() }, allowedTools });
  },
  async thrown() {
    await ask("fall over", { mcpServers: { calc: calc() }, allowedTools });
  },
  async two() {
    await ask("both servers", { mcpServers: { calc: calc(), words: words() }, allowedTools });
  },
  async denied() {
    const more = { permissionMode: "dontAsk", disallowedTools: ["mcp__calc__add"] };
    await ask("add them", { mcpServers: { calc: calc() }, ...more });
  },
  async stdio() {
    await ask("ask the process", { mcpServers: { scripted: process_() }, allowedTools });
  },
  async managed() {
    const talk = new Client({ mcpServers: { calc: calc(), scripted: process_() }, allowedTools });
    await talk.answer("is it there");
    status(await settled(talk));
    await talk.query.toggleMcpServer("scripted", false);
    status(await talk.query.mcpServerStatus());
    await talk.query.toggleMcpServer("scripted", true);
    await talk.query.reconnectMcpServer("scripted");
    await talk.answer("is it there now");
    status(await talk.query.mcpServerStatus());
    await talk.answer("ask the process");
    await talk.close();
  },
  async unknown() {
    const talk = new Client({ mcpServers: { calc: calc() } });
    await talk.query.reconnectMcpServer("nobody");
  },
  async approver() {
    const fields = { tool_name: z.string(), input: z.any(), tool_use_id: z.string() };
    const decide = tool("decide", "Decides", fields, async (given) => {
      say("asked for", given.tool_name);
      return text(plain({ behavior: "deny", message: "the tool says no" }));
    });
    const judge = createSdkMcpServer({ name: "judge", version: "1.0.0", tools: [decide] });
    await ask("write it", { mcpServers: { judge }, permissionPromptToolName: "mcp__judge__decide" });
  },
  async replaced() {
    const talk = new Client({ mcpServers: { calc: calc() }, allowedTools });
    await talk.answer("is it there");
    const changed = await talk.query.setMcpServers({ scripted: process_(), words: words() });
    say("added", plain(changed.added.sort()), "removed", plain(changed.removed), "errors", plain(changed.errors));
    await talk.answer("ask the process");
    status(await talk.query.mcpServerStatus());
    await talk.close();
  },
});
