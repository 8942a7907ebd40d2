"""Sessions that go on: continued, resumed, forked, resumed in the middle; and read back from the state folder."""

import os

from claude_agent_sdk import (
    fork_session,
    get_session_info,
    get_session_messages,
    get_subagent_messages,
    list_sessions,
    list_subagents,
    rename_session,
    tag_session,
)

from common import AssistantMessage, ask, plain, result_of, run, say

ID = "11111111-1111-4111-8111-111111111111"


async def named():
    seen = await ask("remember seven", session_id=ID)
    say("session", result_of(seen).session_id)


async def resumed():
    seen = await ask("which numbers", resume=ID)
    say("session", result_of(seen).session_id)


async def continued():
    seen = await ask("which numbers", continue_conversation=True)
    say("session", result_of(seen).session_id)


async def forked():
    seen = await ask("which numbers", resume=ID, fork_session=True)
    say("another session", result_of(seen).session_id != ID)


async def at():
    first = await ask("remember seven")
    session = result_of(first).session_id
    last = next(one.uuid for one in first if isinstance(one, AssistantMessage))
    await ask("and also eight", resume=session)
    await ask("which numbers", resume=session, resume_session_at=last, fork_session=True)
    await ask("which numbers", resume=session)


async def changed():
    os.environ["CLAUDE_CONFIG_DIR"] = os.environ["DECURION_HOME"]
    session = "44444444-4444-4444-8444-444444444444"
    await ask("remember seven", session_id=session)
    fork = fork_session(session, directory=os.getcwd()).session_id
    await ask("which numbers", resume=fork)
    rename_session(fork, "my numbers", directory=os.getcwd())
    tag_session(fork, "mine", directory=os.getcwd())
    await ask("which numbers", resume=fork, fork_session=True)
    say("title", plain(get_session_info(fork, directory=os.getcwd()).custom_title))


async def missing():
    try:
        await ask("which numbers", resume="22222222-2222-4222-8222-222222222222")
    except Exception as error:
        say("raised", "no session with this id: 22222222" in str(error))


async def read():
    os.environ["CLAUDE_CONFIG_DIR"] = os.environ["DECURION_HOME"]
    session = "33333333-3333-4333-8333-333333333333"
    await ask("delegate", session_id=session)
    listed = list_sessions(directory=os.getcwd())
    say("listed", session in [one.session_id for one in listed])
    info = get_session_info(session, directory=os.getcwd())
    say("info", plain(info.first_prompt), "cwd", info.cwd == os.getcwd())
    for message in get_session_messages(session, directory=os.getcwd()):
        content = message.message["content"]
        kinds = ["text"] if isinstance(content, str) else [block["type"] for block in content]
        say("line", message.type, plain(kinds))
    agents = list_subagents(session, directory=os.getcwd())
    say("agents", len(agents))
    for message in get_subagent_messages(session, agents[0], directory=os.getcwd()):
        say("line of the agent", message.type)


run(named, resumed, continued, forked, at, changed, missing, read)
