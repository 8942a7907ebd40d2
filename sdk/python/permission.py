"""can_use_tool: allowed, denied, with another input, with rules for the rest of the session, failing."""

import os

from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny
from claude_agent_sdk.types import PermissionRuleValue, PermissionUpdate

from common import answer, client, plain, run, say


async def asked(prompt, decide, **more):
    """One turn whose calls are decided by a function."""

    async def decided(tool, given, context):
        say(f"asked for {tool} {plain(given)} as {context.tool_use_id}")
        return decide(tool, given, context)

    async with client(can_use_tool=decided, **more) as talk:
        return await answer(talk, prompt)


def file(path):
    """What is in a file, which is then removed."""
    if not os.path.exists(path):
        return "missing"
    with open(path) as opened:
        content = opened.read()
    os.remove(path)
    return plain(content)


async def allowed():
    await asked("write it", lambda *_: PermissionResultAllow())
    say("note.txt", file("note.txt"))


async def denied():
    seen = await asked("write it", lambda *_: PermissionResultDeny(message="not today"))
    say("note.txt", file("note.txt"))
    say("denials", plain([one["tool_name"] for one in seen[-1].permission_denials]))


async def stopped():
    seen = await asked("write it", lambda *_: PermissionResultDeny(message="stop here", interrupt=True))
    say("note.txt", file("note.txt"), "is_error", seen[-1].is_error)


async def changed():
    def decide(tool, given, context):
        return PermissionResultAllow(updated_input={**given, "content": "as changed"})

    await asked("write it", decide)
    say("note.txt", file("note.txt"))


async def remembered():
    def decide(tool, given, context):
        rules = [PermissionRuleValue(tool_name="Write")]
        update = PermissionUpdate(type="addRules", rules=rules, behavior="allow", destination="session")
        return PermissionResultAllow(updated_permissions=[update])

    await asked("write two", decide)
    say("files", file("one.txt"), file("two.txt"))


async def suggested():
    def decide(tool, given, context):
        say("suggestions", plain([one.type for one in context.suggestions]))
        return PermissionResultAllow(updated_permissions=context.suggestions)

    await asked("write it", decide)
    say("note.txt", file("note.txt"))


async def mode():
    def decide(tool, given, context):
        update = PermissionUpdate(type="setMode", mode="acceptEdits", destination="session")
        return PermissionResultAllow(updated_permissions=[update])

    await asked("write two", decide)
    say("files", file("one.txt"), file("two.txt"))


async def thrown():
    def decide(tool, given, context):
        raise RuntimeError("the callback fell over")

    await asked("write it", decide)
    say("note.txt", file("note.txt"))


run(allowed, denied, stopped, changed, remembered, suggested, mode, thrown)
