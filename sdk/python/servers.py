"""MCP servers: in the host (results, errors, two of them), as a process, and what can be asked and changed."""

import asyncio
import os

from claude_agent_sdk import create_sdk_mcp_server, tool

from common import answer, ask, client, init_of, plain, run, say


@tool("add", "Adds two numbers", {"a": int, "b": int})
async def add(given):
    return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}


@tool("divide", "Divides two numbers", {"a": int, "b": int})
async def divide(given):
    return {"content": [{"type": "text", "text": "not by nothing"}], "is_error": True}


@tool("crash", "Falls over", {})
async def crash(given):
    raise RuntimeError("the tool fell over")


@tool("shout", "Says it loudly", {"word": str})
async def shout(given):
    return {"content": [{"type": "text", "text": given["word"].upper()}]}


def calc():
    return create_sdk_mcp_server(name="calc", version="1.0.0", tools=[add, divide, crash])


def words():
    return create_sdk_mcp_server(name="words", version="1.0.0", tools=[shout])


def process():
    return {"type": "stdio", "command": os.path.join(os.environ["BINARIES"], "mcp-scripted"), "args": ["plain"]}


ALLOWED = ["mcp__calc", "mcp__words", "mcp__scripted"]


async def call():
    seen = await ask("add them", mcp_servers={"calc": calc()}, allowed_tools=ALLOWED)
    say("servers", plain([[one["name"], one["status"]] for one in init_of(seen)["mcp_servers"]]))
    say("tools", plain(sorted(one for one in init_of(seen)["tools"] if one.startswith("mcp__"))))


async def error():
    await ask("divide by nothing", mcp_servers={"calc": calc()}, allowed_tools=ALLOWED)


async def thrown():
    await ask("fall over", mcp_servers={"calc": calc()}, allowed_tools=ALLOWED)


async def two():
    await ask("both servers", mcp_servers={"calc": calc(), "words": words()}, allowed_tools=ALLOWED)


async def denied():
    await ask("add them", mcp_servers={"calc": calc()}, permission_mode="dontAsk", disallowed_tools=["mcp__calc__add"])


async def stdio():
    await ask("ask the process", mcp_servers={"scripted": process()}, allowed_tools=ALLOWED)


def status(answered):
    """What is said of each server."""
    for one in answered["mcpServers"]:
        say(one["name"], one["status"], plain(sorted(tool["name"] for tool in one.get("tools") or [])))


async def settled(talk):
    """What is said of the servers when none is being started any more."""
    while True:
        answered = await talk.get_mcp_status()
        if all(one["status"] != "pending" for one in answered["mcpServers"]):
            return answered
        await asyncio.sleep(0.05)


async def managed():
    servers = {"calc": calc(), "scripted": process()}
    async with client(mcp_servers=servers, allowed_tools=ALLOWED) as talk:
        await answer(talk, "is it there")
        status(await settled(talk))
        await talk.toggle_mcp_server("scripted", False)
        status(await talk.get_mcp_status())
        await talk.toggle_mcp_server("scripted", True)
        await talk.reconnect_mcp_server("scripted")
        await answer(talk, "is it there now")
        status(await talk.get_mcp_status())
        await answer(talk, "ask the process")


async def unknown():
    async with client(mcp_servers={"calc": calc()}) as talk:
        await talk.reconnect_mcp_server("nobody")


async def approver():
    """A tool of a server is asked for permission."""

    @tool("decide", "Decides", {"tool_name": str, "input": dict, "tool_use_id": str})
    async def decide(given):
        say("asked for", given["tool_name"])
        verdict = {"behavior": "deny", "message": "the tool says no"}
        return {"content": [{"type": "text", "text": plain(verdict)}]}

    server = create_sdk_mcp_server(name="judge", version="1.0.0", tools=[decide])
    await ask("write it", mcp_servers={"judge": server}, permission_prompt_tool_name="mcp__judge__decide")


run(call, error, thrown, two, denied, stdio, managed, unknown, approver)
