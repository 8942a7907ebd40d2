// What options set: prompts, tools, sources, skills, plugins, folders, environment, models, thinking.

import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { ask, initOf, plain, run, say } from "./common.mjs";

const flag = (value) => (value ? "True" : "False");

/** Writes a file and its folder. */
function write(path, text) {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

const preset = { type: "preset", preset: "claude_code" };

await run({
  async prompts() {
    await ask("which prompt: none");
    await ask("which prompt: text", { systemPrompt: "Only this." });
    await ask("which prompt: preset", { systemPrompt: preset });
    await ask("which prompt: more", { systemPrompt: { ...preset, append: "And this." } });
  },
  async tools() {
    const listed = (seen) => {
      say("tools", plain(["Bash", "Read", "Write"].filter((one) => initOf(seen).tools.includes(one))));
    };
    listed(await ask("which tools: all"));
    listed(await ask("which tools: none", { tools: [] }));
    listed(await ask("which tools: one", { tools: ["Read"] }));
    listed(await ask("which tools: preset", { tools: preset }));
    listed(await ask("which tools: not this one", { disallowedTools: ["Bash"] }));
    listed(await ask("which tools: not such", { disallowedTools: ["Bash(echo:*)"] }));
  },
  async sources() {
    write(".claude/agents/local.md", "---\nname: local\ndescription: of the project\n---\nYou are local.\n");
    for (const settingSources of [undefined, [], ["user"], ["project"], ["user", "project", "local"]]) {
      const seen = await ask("who is local", { settingSources });
      say(plain(settingSources ?? null), flag(initOf(seen).agents.includes("local")));
    }
  },
  async skills() {
    write(".claude/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: tidies up\n---\nTidy up.\n");
    write(".claude/skills/paint/SKILL.md", "---\nname: paint\ndescription: paints\n---\nPaint.\n");
    for (const skills of ["all", ["tidy"], []]) {
      const seen = await ask("who is local", { skills });
      say(plain(skills), plain(initOf(seen).skills.filter((one) => ["tidy", "paint"].includes(one)).sort()));
    }
  },
  async plugins() {
    const manifest = { name: "helper", description: "helps", version: "1.0.0" };
    write("plugin/.claude-plugin/plugin.json", plain(manifest));
    write("plugin/commands/greet.md", "---\ndescription: greets\n---\ngreet somebody\n");
    const seen = await ask("/helper:greet", { plugins: [{ type: "local", path: resolve("plugin") }] });
    say("plugins", plain(initOf(seen).plugins.map((one) => one.name)));
    say("command", flag(initOf(seen).slash_commands.includes("helper:greet")));
  },
  async folders() {
    write("../next/door.txt", "next door");
    await ask("read next door", { permissionMode: "dontAsk", additionalDirectories: [resolve("../next")] });
  },
  async environment() {
    const env = { ...process.env, GREETING: "hello from the host" };
    await ask("greet me", { env, allowedTools: ["Bash"] });
  },
  async stderr() {
    let heard = "";
    await ask("speak up", { stderr: (text) => (heard += text), extraArgs: { "flag-of-the-future": null } });
    say("stderr names it", flag(heard.includes("flag-of-the-future")));
  },
  async fallback() {
    const seen = await ask("fall back", { fallbackModel: "claude-haiku-4-5" });
    say("model", seen.find((one) => one.type === "assistant").message.model);
  },
  async thinking() {
    await ask("ponder: adaptive", { thinking: { type: "adaptive" } });
    await ask("ponder: enabled", { thinking: { type: "enabled", budgetTokens: 2048 } });
    await ask("ponder: disabled", { thinking: { type: "disabled" } });
    await ask("ponder: low", { effort: "low" });
  },
});
