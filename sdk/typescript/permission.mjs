// canUseTool: allowed, denied, with another input, with rules for the rest of the session, failing.

import { existsSync, readFileSync, rmSync } from "node:fs";
import { Client, plain, run, say } from "./common.mjs";

const flag = (value) => (value ? "True" : "False");

/** One turn whose calls are decided by a function. */
async function asked(prompt, decide, more = {}) {
  const canUseTool = async (tool, given, context) => {
    say(`asked for ${tool} ${plain(given)} as ${context.toolUseID}`);
    return decide(tool, given, context);
  };
  const talk = new Client({ canUseTool, ...more });
  const seen = await talk.answer(prompt);
  await talk.close();
  return seen;
}

/** What is in a file, which is then removed. */
function file(path) {
  if (!existsSync(path)) return "missing";
  const content = readFileSync(path, "utf8");
  rmSync(path);
  return plain(content);
}

const allow = (given, more = {}) => ({ behavior: "allow", updatedInput: given, ...more });

await run({
  async allowed() {
    await asked("write it", (_, given) => allow(given));
    say("note.txt", file("note.txt"));
  },
  async denied() {
    const seen = await asked("write it", () => ({ behavior: "deny", message: "not today" }));
    say("note.txt", file("note.txt"));
    say("denials", plain(seen.at(-1).permission_denials.map((one) => one.tool_name)));
  },
  async stopped() {
    const deny = { behavior: "deny", message: "stop here", interrupt: true };
    const seen = await asked("write it", () => deny);
    say("note.txt", file("note.txt"), "is_error", flag(seen.at(-1).is_error));
  },
  async changed() {
    await asked("write it", (_, given) => allow({ ...given, content: "as changed" }));
    say("note.txt", file("note.txt"));
  },
  async remembered() {
    const rules = [{ toolName: "Write" }];
    const update = { type: "addRules", rules, behavior: "allow", destination: "session" };
    await asked("write two", (_, given) => allow(given, { updatedPermissions: [update] }));
    say("files", file("one.txt"), file("two.txt"));
  },
  async suggested() {
    await asked("write it", (_, given, context) => {
      say("suggestions", plain(context.suggestions.map((one) => one.type)));
      return allow(given, { updatedPermissions: context.suggestions });
    });
    say("note.txt", file("note.txt"));
  },
  async mode() {
    const update = { type: "setMode", mode: "acceptEdits", destination: "session" };
    await asked("write two", (_, given) => allow(given, { updatedPermissions: [update] }));
    say("files", file("one.txt"), file("two.txt"));
  },
  async thrown() {
    await asked("write it", () => {
      throw new Error("the callback fell over");
    });
    say("note.txt", file("note.txt"));
  },
});
