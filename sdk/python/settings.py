"""What options set: prompts, tools, sources, skills, plugins, folders, environment, models, thinking."""

import os

from common import AssistantMessage, ask, init_of, plain, run, say


def write(path, text):
    """Writes a file and its folder."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


async def prompts():
    """The test looks at the requests."""
    await ask("which prompt: none")
    await ask("which prompt: text", system_prompt="Only this.")
    await ask("which prompt: preset", system_prompt={"type": "preset", "preset": "claude_code"})
    await ask("which prompt: more", system_prompt={"type": "preset", "preset": "claude_code", "append": "And this."})


async def prompt_file():
    """The test looks at the requests."""
    write("prompts/system.md", "From a file.")
    await ask("which prompt: file", system_prompt={"type": "file", "path": os.path.abspath("prompts/system.md")})


async def tools():
    def listed(seen):
        say("tools", plain([one for one in ["Bash", "Read", "Write"] if one in init_of(seen)["tools"]]))

    listed(await ask("which tools: all"))
    listed(await ask("which tools: none", tools=[]))
    listed(await ask("which tools: one", tools=["Read"]))
    listed(await ask("which tools: preset", tools={"type": "preset", "preset": "claude_code"}))
    listed(await ask("which tools: not this one", disallowed_tools=["Bash"]))
    listed(await ask("which tools: not such", disallowed_tools=["Bash(echo:*)"]))


async def sources():
    write(".claude/agents/local.md", "---\nname: local\ndescription: of the project\n---\nYou are local.\n")
    for chosen in [None, [], ["user"], ["project"], ["user", "project", "local"]]:
        seen = await ask("who is local", setting_sources=chosen)
        say(plain(chosen), "local" in init_of(seen)["agents"])


async def skills():
    write(".claude/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: tidies up\n---\nTidy up.\n")
    write(".claude/skills/paint/SKILL.md", "---\nname: paint\ndescription: paints\n---\nPaint.\n")
    for chosen in ["all", ["tidy"], []]:
        seen = await ask("who is local", skills=chosen)
        say(plain(chosen), plain(sorted(one for one in init_of(seen)["skills"] if one in ["tidy", "paint"])))


async def plugins():
    write("plugin/.claude-plugin/plugin.json", plain({"name": "helper", "description": "helps", "version": "1.0.0"}))
    write("plugin/commands/greet.md", "---\ndescription: greets\n---\ngreet somebody\n")
    seen = await ask("/helper:greet", plugins=[{"type": "local", "path": os.path.abspath("plugin")}])
    say("plugins", plain([one["name"] for one in init_of(seen)["plugins"]]))
    say("command", "helper:greet" in init_of(seen)["slash_commands"])


async def folders():
    write("../next/door.txt", "next door")
    await ask("read next door", permission_mode="dontAsk", add_dirs=[os.path.abspath("../next")])


async def environment():
    await ask("greet me", env={"GREETING": "hello from the host"}, allowed_tools=["Bash"])


async def stderr():
    heard = []
    await ask("speak up", stderr=heard.append, extra_args={"flag-of-the-future": None})
    say("stderr names it", any("flag-of-the-future" in line for line in heard))


async def fallback():
    seen = await ask("fall back", fallback_model="claude-haiku-4-5")
    say("model", next(one.model for one in seen if isinstance(one, AssistantMessage)))


async def thinking():
    """The test looks at the requests."""
    await ask("ponder: adaptive", thinking={"type": "adaptive"})
    await ask("ponder: enabled", thinking={"type": "enabled", "budget_tokens": 2048})
    await ask("ponder: disabled", thinking={"type": "disabled"})
    await ask("ponder: low", effort="low")


run(prompts, prompt_file, tools, sources, skills, plugins, folders, environment, stderr, fallback, thinking)
