"""What a host asks besides prompts: how full the context is, what there is, files put back; and errors of the model."""

import os

from common import ResultMessage, UserMessage, answer, client, options, query, run, say, show


async def usage():
    async with client() as talk:
        await answer(talk, "how full is it")
        answered = await talk.get_context_usage()
        say("total", 0 < answered["totalTokens"] < answered["maxTokens"], "model", answered["model"])
        say("percentage", 0 <= answered["percentage"] <= 100)
        say("categories", len(answered["categories"]) > 0)
        say("sum", sum(one["tokens"] for one in answered["categories"]) >= answered["totalTokens"])


async def info():
    async with client() as talk:
        answered = await talk.get_server_info()
        for name in ["commands", "agents", "models"]:
            say(name, len(answered[name]) > 0)
        say("account", isinstance(answered["account"], dict))


async def rewind():
    with open("kept.txt", "w") as file:
        file.write("before")
    more = {"enable_file_checkpointing": True, "extra_args": {"replay-user-messages": None}}
    async with client(permission_mode="acceptEdits", **more) as talk:
        seen = await answer(talk, "change the file")
        prompt = next(one.uuid for one in seen if isinstance(one, UserMessage) and one.uuid)
        say("kept.txt", open("kept.txt").read(), "new.txt", os.path.exists("new.txt"))
        await talk.rewind_files(prompt)
        say("kept.txt", open("kept.txt").read(), "new.txt", os.path.exists("new.txt"))


async def failure(prompt):
    """What a host sees of a request that the model's provider refuses."""
    try:
        async for message in query(prompt=prompt, options=options()):
            show(message)
            if isinstance(message, ResultMessage):
                say("is_error", message.is_error, "status", message.api_error_status)
    except Exception:
        say("raised")


async def bad_model():
    await failure("a bad name")


async def no_key():
    await failure("no key")


async def bad_request():
    await failure("a bad request")


run(usage, info, rewind, bad_model, no_key, bad_request)
