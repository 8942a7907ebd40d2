"""query(): a prompt of text, tools, thinking, a prompt as a stream, and what the first and the last message hold."""

from common import ask, init_of, plain, result_of, run, say


async def text():
    await ask("say hello")


async def tools():
    await ask("look around")


async def thinking():
    await ask("think about it")


async def stream():
    async def prompts():
        content = [{"type": "text", "text": "first part"}, {"type": "text", "text": "second part"}]
        yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}

    await ask(prompts())


async def fields():
    seen = await ask("say hello")
    init, result = init_of(seen), result_of(seen)
    for name in ["model", "permissionMode", "output_style"]:
        say(f"init {name}={init[name]}")
    for name in ["cwd", "session_id", "uuid", "claude_code_version"]:
        say(f"init {name}: {'there' if init[name] else 'missing'}")
    for name in ["tools", "agents", "slash_commands", "skills", "plugins", "mcp_servers"]:
        say(f"init {name} is a list: {isinstance(init[name], list)}")
    say("tools", plain([name for name in ["Agent", "Bash", "Edit", "Read", "Write"] if name in init["tools"]]))
    usage = result.usage
    say("usage", usage["input_tokens"], usage["output_tokens"])
    say("is_error", plain(result.is_error), "stop_reason", result.stop_reason)
    say("same session", plain(result.session_id == init["session_id"]))
    say("durations", plain(result.duration_ms >= 0 and result.duration_api_ms >= 0))
    say("cost is known", plain(result.total_cost_usd > 0))
    say("denials", plain(result.permission_denials))
    say("models", plain(list(result.model_usage)))


run(text, tools, thinking, stream, fields)
