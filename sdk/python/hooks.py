"""Hooks that are functions of the host: each event, each kind of answer, one that throws and one that hangs."""

import asyncio

from claude_agent_sdk import HookMatcher

from common import answer, ask, client, plain, run, say


def hook(event, output, matcher=None, timeout=None, shown=()):
    """A hook that says what it was given and answers this."""

    async def called(given, call, context):
        fields = "".join(f" {name}={plain(given.get(name))}" for name in shown)
        say(f"hook {given['hook_event_name']}{fields}{f' for {call}' if call else ''}")
        missing = [name for name in ["session_id", "transcript_path", "cwd"] if not given.get(name)]
        if missing:
            say(f"missing {missing}")
        return output(given) if callable(output) else output

    return {event: [HookMatcher(matcher=matcher, hooks=[called], timeout=timeout)]}


def special(event, **output):
    """An answer that belongs to one event."""
    return {"hookSpecificOutput": {"hookEventName": event, **output}}


async def denied():
    deny = special("PreToolUse", permissionDecision="deny", permissionDecisionReason="not this one")
    shown = ["tool_name", "tool_input", "permission_mode"]
    await ask("run it", allowed_tools=["Bash"], hooks=hook("PreToolUse", deny, "Bash", shown=shown))


async def changed():
    other = {"command": "echo as changed", "description": "run"}
    allow = special("PreToolUse", permissionDecision="allow", updatedInput=other)
    await ask("run it", hooks=hook("PreToolUse", allow, "Bash"))


async def other_tool():
    await ask("run it", allowed_tools=["Bash"], hooks=hook("PreToolUse", {}, "Write"))


async def after():
    add = special("PostToolUse", additionalContext="a word from the hook")
    await ask("run it", allowed_tools=["Bash"], hooks=hook("PostToolUse", add, shown=["tool_name", "tool_input"]))


async def replaced():
    other = special("PostToolUse", updatedToolOutput="as the hook says")
    await ask("run it", allowed_tools=["Bash"], hooks=hook("PostToolUse", other))


async def halted():
    stop = {"continue_": False, "stopReason": "that was enough"}
    await ask("run it", allowed_tools=["Bash"], hooks=hook("PostToolUse", stop))


async def prompt():
    add = special("UserPromptSubmit", additionalContext="a word from the hook")
    await ask("the prompt", hooks=hook("UserPromptSubmit", add, shown=["prompt"]))


async def refused():
    block = {"decision": "block", "reason": "not this prompt"}
    await ask("the prompt", hooks=hook("UserPromptSubmit", block))


async def stopping():
    def decide(given):
        return {} if given["stop_hook_active"] else {"decision": "block", "reason": "not yet"}

    await ask("stop twice", hooks=hook("Stop", decide, shown=["stop_hook_active"]))


async def agents():
    start = hook("SubagentStart", special("SubagentStart", additionalContext="look closely"), shown=["agent_type"])
    stop = hook("SubagentStop", {}, shown=["agent_type", "stop_hook_active"])
    await ask("delegate", hooks={**start, **stop})


async def compaction():
    async with client(hooks=hook("PreCompact", {}, shown=["trigger", "custom_instructions"])) as talk:
        await answer(talk, "something to shorten")
        await answer(talk, "/compact keep the numbers")


async def thrown():
    def fail(given):
        raise RuntimeError("the hook fell over")

    await ask("run it", allowed_tools=["Bash"], hooks=hook("PostToolUse", fail))


async def silent():
    async def called(given, call, context):
        say(f"hook {given['hook_event_name']}")
        await asyncio.sleep(30)

    hooks = {"PostToolUse": [HookMatcher(hooks=[called], timeout=1)]}
    await ask("run it", allowed_tools=["Bash"], hooks=hooks)


run(
    denied,
    changed,
    other_tool,
    after,
    replaced,
    halted,
    prompt,
    refused,
    stopping,
    agents,
    compaction,
    thrown,
    silent,
)
