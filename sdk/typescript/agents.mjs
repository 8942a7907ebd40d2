// Agents given by the host: visible at every depth, in the background, stopped.

import { closeSync, existsSync, openSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { Client, ask, initOf, plain, run, say, showRoot } from "./common.mjs";

const REVIEWER = { description: "reviews files", prompt: "You review.", tools: ["Bash", "Read"] };
const WORKER = { description: "works", prompt: "You work.", tools: ["Read"] };
const LEADER = { description: "leads", prompt: "You lead.", tools: ["Agent", "Read"] };

/** Waits until a file is there. */
async function until(path) {
  while (!existsSync(path)) await pause(10);
}

await run({
  async given() {
    const seen = await ask("review it", { agents: { reviewer: REVIEWER }, allowedTools: ["Bash"] });
    say("offered", initOf(seen).agents.includes("reviewer") ? "True" : "False");
    for (const one of seen) {
      if (one.subtype === "task_progress") say("progress", one.last_tool_name, one.usage.tool_uses);
    }
  },
  async nested() {
    const settings = plain({ agents: { max_depth: 2 } });
    const more = { settings, forwardSubagentText: true };
    await ask("two levels", { agents: { leader: LEADER, worker: WORKER }, ...more });
  },
  async background() {
    const slow = { description: "slow", prompt: "You wait.", tools: ["Bash"] };
    const talk = new Client({ agents: { slow }, allowedTools: ["Bash"] });
    await talk.answer("in the background", showRoot);
    await until("slow-began");
    closeSync(openSync("slow-go", "w"));
    for (let ended = false; ; ) {
      const { value } = await talk.messages.next();
      showRoot(value);
      ended ||= value.subtype === "task_notification";
      if (ended && value.type === "result") break;
    }
    await talk.close();
  },
  async sent() {
    const talk = new Client({ allowedTools: ["Bash"] });
    talk.send("a long command");
    await until("long-began");
    say("sent", (await talk.query.backgroundTasks()) ? "True" : "False");
    const seen = await talk.response((message) => message.type !== "user" && showRoot(message));
    await talk.query.stopTask(seen.find((one) => one.subtype === "task_started").task_id);
    for (;;) {
      const { value } = await talk.messages.next();
      if (value.subtype === "task_notification") break;
    }
    say("stopped");
    await talk.close();
  },
  async stopped() {
    const endless = { description: "endless", prompt: "You wait.", tools: ["Bash"] };
    const talk = new Client({ agents: { endless }, allowedTools: ["Bash"] });
    const seen = await talk.answer("stop it", showRoot);
    await until("endless-began");
    await talk.query.stopTask(seen.find((one) => one.subtype === "task_started").task_id);
    for (;;) {
      const { value } = await talk.messages.next();
      if (value.subtype !== "task_notification") continue;
      showRoot(value);
      break;
    }
    await talk.close();
  },
});
