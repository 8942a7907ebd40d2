"""What comes while a turn goes on: partial messages, hook events; and content longer than a line may be."""

import os

from claude_agent_sdk import HookMatcher, StreamEvent

from common import SystemMessage, ask, options, plain, query, result_of, run, say


def events(seen):
    """The parts of a message, a word for each."""
    for one in seen:
        if not isinstance(one, StreamEvent):
            continue
        kind = one.event["type"]
        detail = one.event.get("delta", one.event.get("content_block", {}))
        fields = [detail[name] for name in ["text", "thinking", "partial_json", "name", "stop_reason"] if name in detail]
        say("event", kind, detail.get("type", ""), plain(fields))


async def partial():
    events(await ask("say it in pieces", include_partial_messages=True))


async def partial_call():
    events(await ask("call in pieces", include_partial_messages=True, allowed_tools=["Bash"]))


async def hook_events():
    async def called(given, call, context):
        return {"systemMessage": "seen"}

    hooks = {"PreToolUse": [HookMatcher(matcher="Bash", hooks=[called])]}
    seen = await ask("run it", include_hook_events=True, hooks=hooks, allowed_tools=["Bash"])
    for one in seen:
        if isinstance(one, SystemMessage) and one.subtype in ("hook_started", "hook_response"):
            say(one.subtype, one.data["hook_event"], one.data["hook_name"], one.data.get("outcome", ""))


async def long_text():
    """A text of 1.6 MB: no line is longer than the SDK can read."""
    seen = await ask_quietly("say a lot")
    say("ends", result_of(seen).subtype, "whole or cut", len(result_of(seen).result) > 100_000)


async def ask_quietly(prompt, **more):
    """One query of which nothing is printed."""
    return [message async for message in query(prompt=prompt, options=options(**more))]


async def long_result():
    with open("big.txt", "w") as file:
        file.write("x" * 100 + "\n" + "y" * 2_000_000)
    seen = await ask_quietly("read the big one", allowed_tools=["Read"])
    say("ends", result_of(seen).subtype, plain(result_of(seen).result))
    os.remove("big.txt")


async def long_call():
    """A call that a line cannot hold: a hook that changes another part of it leaves it whole, and one that makes
    something of the part that it saw has it refused."""
    text = "\x01" * 200_000

    async def moved(given, call, context):
        return allow({**given["tool_input"], "file_path": os.path.abspath("moved.txt")})

    async def made(given, call, context):
        return allow({**given["tool_input"], "content": given["tool_input"]["content"][:100_000] + "…"})

    def allow(given):
        output = {"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": given}
        return {"hookSpecificOutput": output}

    for called in [moved, made]:
        hooks = {"PreToolUse": [HookMatcher(matcher="Write", hooks=[called])]}
        seen = await ask_quietly(f"write {os.path.abspath('long.txt')}: {text}", hooks=hooks, allowed_tools=["Write"])
        say("ends", result_of(seen).subtype, plain(result_of(seen).result))
        for name in ["long.txt", "moved.txt"]:
            if os.path.exists(name):
                with open(name) as file:
                    say(name, "is whole", file.read() == text)
                os.remove(name)


run(partial, partial_call, hook_events, long_text, long_result, long_call)
