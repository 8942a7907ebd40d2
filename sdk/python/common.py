"""What the programs share: options that name the program under test, and one plain line for each thing seen.

Takes DECURION (the program's path) from the environment and the names of sections as arguments; prints lines that
are the same as those of the TypeScript programs.
"""

import asyncio
import json
import os
import re
import sys

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    query,
)

MODEL = "claude-sonnet-4-5"


def options(**more):
    """Options of a program that uses decurion."""
    more.setdefault("model", MODEL)
    return ClaudeAgentOptions(cli_path=os.environ["DECURION"], **more)


def plain(value):
    """JSON that is the same in both languages."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def text_of(content):
    """The text of a tool's result, without what is different each time: the id of an agent and what it used."""
    if isinstance(content, list):
        content = "".join(block.get("text", f"<{block.get('type')}>") for block in content)
    return (content or "").split("agentId:")[0].strip()


def lines(message):
    """What a message says, a line for each block."""
    if isinstance(message, AssistantMessage):
        for block in message.content:
            if isinstance(block, TextBlock):
                yield f"says {plain(block.text)}"
            elif isinstance(block, ThinkingBlock):
                yield f"thinks {plain(block.thinking)}"
            elif isinstance(block, ToolUseBlock):
                yield f"calls {block.name} {plain(block.input)}"
        if message.error:
            yield f"error {message.error}"
    elif isinstance(message, UserMessage):
        content = message.content
        for block in [TextBlock(text=content)] if isinstance(content, str) else content:
            if isinstance(block, TextBlock):
                yield f"hears {plain(block.text)}"
            elif isinstance(block, ToolResultBlock):
                yield f"{'fails' if block.is_error else 'gets'} {plain(text_of(block.content))}"
    elif isinstance(message, ResultMessage):
        errors = f" errors={plain(message.errors)}" if message.errors else ""
        result = f" {plain(message.result)}" if message.result is not None else ""
        yield f"ends {message.subtype} turns={message.num_turns}{result}{errors}"
    elif isinstance(message, SystemMessage):
        yield from system_lines(message.data)


def system_lines(data):
    """What is said of tasks. What else the system says is printed by the programs that ask for it."""
    kind = data["subtype"]
    if kind == "task_started":
        yield f"task started: {data.get('task_type')} {plain(data['description'])} by {data.get('tool_use_id')}"
    elif kind == "task_notification":
        yield f"task ended: {data['status']} {plain(data['summary'])} by {data.get('tool_use_id')}"


def show(message):
    """Prints what a message says; what an agent says is indented, with the call that started it."""
    parent = getattr(message, "parent_tool_use_id", None)
    for line in lines(message):
        line = re.sub('The tools are: [^<"]*', "The tools are: …", re.sub("req_[0-9a-f]+", "req_…", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", line)))
        say(f"  [{parent}] {line}" if parent else line)


def show_root(message):
    """The same without what agents say, whose order against the root's is not fixed in the background."""
    if not getattr(message, "parent_tool_use_id", None):
        show(message)


def say(*words):
    """Prints a line at once: another process may be waiting for it."""
    print(*words, flush=True)


async def ask(prompt, **more):
    """One query; prints all that comes and gives it back."""
    seen = []
    async for message in query(prompt=prompt, options=options(**more)):
        seen.append(message)
        show(message)
    return seen


async def answer(client, prompt, shown=show):
    """One turn of a client; prints all that comes and gives it back."""
    seen = []
    await client.query(prompt)
    async for message in client.receive_response():
        seen.append(message)
        shown(message)
    return seen


def init_of(seen):
    """The first init of what was seen."""
    return next(one.data for one in seen if isinstance(one, SystemMessage) and one.subtype == "init")


def result_of(seen):
    """The last result of what was seen."""
    return [one for one in seen if isinstance(one, ResultMessage)][-1]


def client(**more):
    """A client that uses decurion."""
    return ClaudeSDKClient(options=options(**more))


def run(*sections):
    """Runs the sections named as arguments, or all of them."""
    wanted = sys.argv[1:] or [section.__name__ for section in sections]
    known = {section.__name__: section for section in sections}
    for name in wanted:
        say(f"== {name}")
        try:
            asyncio.run(asyncio.wait_for(known[name](), 60))
        except Exception as error:
            # The SDKs add the exit code in different places.
            say(f"raised {str(error).splitlines()[0].split(' (exit code')[0] if str(error) else 'a time-out'}")
