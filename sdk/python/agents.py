"""Agents given by the host: visible at every depth, in the background, stopped."""

import asyncio
import os

from claude_agent_sdk import AgentDefinition

from common import ResultMessage, SystemMessage, answer, ask, client, init_of, plain, run, say, show_root

REVIEWER = AgentDefinition(description="reviews files", prompt="You review.", tools=["Bash", "Read"])
WORKER = AgentDefinition(description="works", prompt="You work.", tools=["Read"])
LEADER = AgentDefinition(description="leads", prompt="You lead.", tools=["Agent", "Read"])


async def until(path):
    """Waits until a file is there."""
    while not os.path.exists(path):
        await asyncio.sleep(0.01)


def tasks(seen):
    """The tasks that were spoken of, by what was said."""
    for one in seen:
        if isinstance(one, SystemMessage) and one.subtype == "task_progress":
            say("progress", one.data["last_tool_name"], one.data["usage"]["tool_uses"])


async def given():
    seen = await ask("review it", agents={"reviewer": REVIEWER}, allowed_tools=["Bash"])
    say("offered", "reviewer" in init_of(seen)["agents"])
    tasks(seen)


async def nested():
    deep = plain({"agents": {"max_depth": 2}})
    more = {"settings": deep, "forward_subagent_text": True}
    await ask("two levels", agents={"leader": LEADER, "worker": WORKER}, **more)


async def background():
    slow = AgentDefinition(description="slow", prompt="You wait.", tools=["Bash"])
    async with client(agents={"slow": slow}, allowed_tools=["Bash"]) as talk:
        await answer(talk, "in the background", show_root)
        await until("slow-began")
        open("slow-go", "w").close()
        ended = False
        async for message in talk.receive_messages():
            show_root(message)
            ended = ended or getattr(message, "subtype", "") == "task_notification"
            if ended and isinstance(message, ResultMessage):
                break


async def stopped():
    endless = AgentDefinition(description="endless", prompt="You wait.", tools=["Bash"])
    async with client(agents={"endless": endless}, allowed_tools=["Bash"]) as talk:
        seen = await answer(talk, "stop it", show_root)
        await until("endless-began")
        await talk.stop_task(next(one.task_id for one in seen if getattr(one, "subtype", "") == "task_started"))
        async for message in talk.receive_messages():
            if getattr(message, "subtype", "") == "task_notification":
                show_root(message)
                break


run(given, nested, background, stopped)
