// A client of many turns: context kept, prompts that wait, interrupt, and what can be changed in the middle.

import { closeSync, existsSync, openSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { Client, ask, run, say } from "./common.mjs";

const flag = (value) => (value ? "True" : "False");

/** Waits until a file is there. */
async function until(path) {
  while (!existsSync(path)) await pause(10);
}

await run({
  async turns() {
    const talk = new Client();
    const first = await talk.answer("remember seven");
    const second = await talk.answer("which number was it");
    say("one session", flag(first.at(-1).session_id === second.at(-1).session_id));
    await talk.close();
  },
  async queued() {
    const talk = new Client({ allowedTools: ["Bash"] });
    talk.send("work for a while");
    await until("working");
    talk.send("and this too");
    closeSync(openSync("go", "w"));
    const said = [];
    for (;;) {
      const { value } = await talk.messages.next();
      if (value.type === "assistant") said.push(...value.message.content.map((block) => block.text));
      if (value.type === "result" && said.includes("This too.")) break;
    }
    say("both were answered", flag(said.includes("Worked.")), flag(said.includes("This too.")));
    await talk.close();
  },
  async interrupt() {
    const talk = new Client({ allowedTools: ["Bash"] });
    talk.send("never end");
    await until("endless");
    await talk.query.interrupt();
    for (;;) {
      const { value } = await talk.messages.next();
      if (value.type !== "result") continue;
      say("ends", value.subtype, flag(value.is_error));
      break;
    }
    await talk.answer("still there");
    await talk.close();
  },
  async mode() {
    const talk = new Client({ permissionMode: "plan" });
    await talk.answer("change nothing");
    await talk.query.setPermissionMode("acceptEdits");
    await talk.answer("change something");
    say("files", flag(existsSync("plan.txt")), flag(existsSync("change.txt")));
    await talk.close();
  },
  async model() {
    const talk = new Client();
    await talk.answer("who are you");
    await talk.query.setModel("claude-opus-4-5");
    const seen = await talk.answer("who are you now");
    say("model", seen.find((one) => one.type === "assistant").message.model);
    await talk.close();
  },
  async closing() {
    async function* prompts() {
      yield { type: "user", message: { role: "user", content: "close now" }, parent_tool_use_id: null };
    }
    await ask(prompts());
    say("over");
  },
});
