// Sessions that go on: continued, resumed, forked, resumed in the middle; and read back from the state folder.

import {
  forkSession,
  getSessionInfo,
  getSessionMessages,
  getSubagentMessages,
  listSessions,
  listSubagents,
  renameSession,
  tagSession,
} from "@anthropic-ai/claude-agent-sdk";
import { ask, plain, resultOf, run, say } from "./common.mjs";

const ID = "11111111-1111-4111-8111-111111111111";
const flag = (value) => (value ? "True" : "False");

await run({
  async named() {
    const seen = await ask("remember seven", { sessionId: ID });
    say("session", resultOf(seen).session_id);
  },
  async resumed() {
    const seen = await ask("which numbers", { resume: ID });
    say("session", resultOf(seen).session_id);
  },
  async continued() {
    const seen = await ask("which numbers", { continue: true });
    say("session", resultOf(seen).session_id);
  },
  async forked() {
    const seen = await ask("which numbers", { resume: ID, forkSession: true });
    say("another session", flag(resultOf(seen).session_id !== ID));
  },
  async at() {
    const first = await ask("remember seven");
    const session = resultOf(first).session_id;
    const last = first.find((one) => one.type === "assistant").uuid;
    await ask("and also eight", { resume: session });
    await ask("which numbers", { resume: session, resumeSessionAt: last, forkSession: true });
    await ask("which numbers", { resume: session });
  },
  async changed() {
    process.env.CLAUDE_CONFIG_DIR = process.env.DECURION_HOME;
    const session = "44444444-4444-4444-8444-444444444444";
    const place = { dir: process.cwd() };
    await ask("remember seven", { sessionId: session });
    const fork = (await forkSession(session, place)).sessionId;
    await ask("which numbers", { resume: fork });
    await renameSession(fork, "my numbers", place);
    await tagSession(fork, "mine", place);
    await ask("which numbers", { resume: fork, forkSession: true });
    say("title", plain((await getSessionInfo(fork, place)).customTitle));
  },
  async missing() {
    try {
      await ask("which numbers", { resume: "22222222-2222-4222-8222-222222222222" });
    } catch (error) {
      say("raised", flag(error.message.includes("no session with this id: 22222222")));
    }
  },
  async read() {
    process.env.CLAUDE_CONFIG_DIR = process.env.DECURION_HOME;
    const [session, dir] = ["33333333-3333-4333-8333-333333333333", process.cwd()];
    await ask("delegate", { sessionId: session });
    const listed = await listSessions({ dir });
    say("listed", flag(listed.some((one) => one.sessionId === session)));
    const info = await getSessionInfo(session, { dir });
    say("info", plain(info.firstPrompt), "cwd", flag(info.cwd === dir));
    for (const message of await getSessionMessages(session, { dir })) {
      const content = message.message.content;
      const kinds = typeof content === "string" ? ["text"] : content.map((block) => block.type);
      say("line", message.type, plain(kinds));
    }
    const agents = await listSubagents(session, { dir });
    say("agents", agents.length);
    for (const message of await getSubagentMessages(session, agents[0], { dir })) {
      say("line of the agent", message.type);
    }
  },
});
