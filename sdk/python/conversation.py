"""A client of many turns: context kept, prompts that wait, interrupt, and what can be changed in the middle."""

import asyncio
import os

from common import AssistantMessage, ResultMessage, answer, client, query, options, run, say, show


async def until(path):
    """Waits until a file is there."""
    while not os.path.exists(path):
        await asyncio.sleep(0.01)


async def turns():
    async with client() as talk:
        first = await answer(talk, "remember seven")
        second = await answer(talk, "which number was it")
        say("one session", first[-1].session_id == second[-1].session_id)


async def queued():
    async with client(allowed_tools=["Bash"]) as talk:
        await talk.query("work for a while")
        await until("working")
        await talk.query("and this too")
        open("go", "w").close()
        said = []
        async for message in talk.receive_messages():
            if isinstance(message, AssistantMessage):
                said += [block.text for block in message.content if hasattr(block, "text")]
            if isinstance(message, ResultMessage) and "This too." in said:
                break
        say("both were answered", "Worked." in said, "This too." in said)


async def interrupt():
    async with client(allowed_tools=["Bash"]) as talk:
        await talk.query("never end")
        await until("endless")
        await talk.interrupt()
        async for message in talk.receive_response():
            if isinstance(message, ResultMessage):
                say("ends", message.subtype, message.is_error)
        await answer(talk, "still there")


async def mode():
    async with client(permission_mode="plan") as talk:
        await answer(talk, "change nothing")
        await talk.set_permission_mode("acceptEdits")
        await answer(talk, "change something")
        say("files", os.path.exists("plan.txt"), os.path.exists("change.txt"))


async def model():
    async with client() as talk:
        await answer(talk, "who are you")
        await talk.set_model("claude-opus-4-5")
        seen = await answer(talk, "who are you now")
        say("model", next(one.model for one in seen if isinstance(one, AssistantMessage)))


async def closing():
    async def prompts():
        message = {"role": "user", "content": "close now"}
        yield {"type": "user", "message": message, "parent_tool_use_id": None}

    async for message in query(prompt=prompts(), options=options()):
        show(message)
    say("over")


run(turns, queued, interrupt, mode, model, closing)
