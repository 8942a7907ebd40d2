"""Limits of turns and money, and results that must fit a schema."""

from common import ResultMessage, ask, options, plain, query, result_of, run, say

SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


async def ending(prompt, **more):
    """The result of a query, also of one that the SDK ends with an exception."""
    result = None
    try:
        async for message in query(prompt=prompt, options=options(**more)):
            result = message if isinstance(message, ResultMessage) else result
    except Exception:
        say("raised")
    say("ends", result.subtype, "is_error", result.is_error)
    return result


async def turns():
    result = await ending("on and on", max_turns=3, allowed_tools=["Bash"])
    say("turns", result.num_turns)


async def money():
    await ending("expensive", max_budget_usd=0.001, allowed_tools=["Bash"])


async def schema():
    seen = await ask("how many", output_format=FORMAT)
    say("structured", plain(result_of(seen).structured_output))


async def reminded():
    seen = await ask("plain answer", output_format=FORMAT)
    say("structured", plain(result_of(seen).structured_output))


async def hopeless():
    await ending("never right", output_format=FORMAT)


run(turns, money, schema, reminded, hopeless)
