// query(): a prompt of text, tools, thinking, a prompt as a stream, and what the first and the last message hold.

import { ask, initOf, plain, resultOf, run, say } from "./common.mjs";

async function* prompts() {
  const content = [
    { type: "text", text: "first part" },
    { type: "text", text: "second part" },
  ];
  yield { type: "user", message: { role: "user", content }, parent_tool_use_id: null };
}

await run({
  async text() {
    await ask("say hello");
  },
  async tools() {
    await ask("look around");
  },
  async thinking() {
    await ask("think about it");
  },
  async stream() {
    await ask(prompts());
  },
  async fields() {
    const seen = await ask("say hello");
    const [init, result] = [initOf(seen), resultOf(seen)];
    for (const name of ["model", "permissionMode", "output_style"]) say(`init ${name}=${init[name]}`);
    for (const name of ["cwd", "session_id", "uuid", "claude_code_version"]) {
      say(`init ${name}: ${init[name] ? "there" : "missing"}`);
    }
    const lists = ["tools", "agents", "slash_commands", "skills", "plugins", "mcp_servers"];
    for (const name of lists) say(`init ${name} is a list: ${Array.isArray(init[name]) ? "True" : "False"}`);
    const tools = ["Agent", "Bash", "Edit", "Read", "Write"];
    say("tools", plain(tools.filter((name) => init.tools.includes(name))));
    say("usage", result.usage.input_tokens, result.usage.output_tokens);
    say("is_error", result.is_error, "stop_reason", result.stop_reason);
    say("same session", result.session_id === init.session_id);
    say("durations", result.duration_ms >= 0 && result.duration_api_ms >= 0);
    say("cost is known", result.total_cost_usd > 0);
    say("denials", plain(result.permission_denials));
    say("models", plain(Object.keys(result.modelUsage)));
  },
});
