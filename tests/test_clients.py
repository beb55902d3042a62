"""Loops that are not ours: the Anthropic SDK's tool runner, and the clients' own stream helpers over held streams."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.harness.gateways import Gateway
from tests.harness.upstream import FINAL_WORDS, Gate, Gated, Words
from tests.test_answers import ENDED, answering, request, script, told

__all__ = ["answering"]

pytestmark = pytest.mark.proxy


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tool", ["read_file", "reject_it"], ids=["stop", "reject"])
def test_the_anthropic_tool_runner_comes_to_its_end(
    answering: Gateway, tmp_path: Path, stream: bool, tool: str
) -> None:
    """Its tool leaves a line each time: four. It ends normally with the guard's words, or with the client's error."""
    import anthropic

    lines = tmp_path / "lines.txt"

    @anthropic.beta_tool(name=tool)
    def run_tool(path: str) -> str:
        """Leave a line."""
        with lines.open("a", encoding="utf-8") as file:
            file.write(f"{path}\n")
        return "x = 1"

    def run() -> Any:
        client = anthropic.Anthropic(base_url=answering.proxy.url, api_key=answering.proxy.key, max_retries=0)
        runner: Any = client.beta.messages.tool_runner(
            model="native-messages/looping",
            max_tokens=1024,
            max_iterations=12,
            messages=[{"role": "user", "content": "Do it."}],
            tools=[run_tool],
            stream=stream,
            thread=False,
            extra_body={"guardrails": ["usual"]},
        )
        last: Any = None
        for each in runner:
            last = each.get_final_message() if stream else each
        return last

    if tool == "reject_it":
        with pytest.raises(anthropic.BadRequestError, match="was called 4 times"):
            run()
    else:
        message = run()
        assert (message.stop_reason, message.content[0].text.startswith(ENDED)) == ("end_turn", True)
    assert lines.read_text(encoding="utf-8") == "notes.txt\n" * 4


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_the_clients_helpers_accept_signs_of_life(answering: Gateway, dialect: Any) -> None:
    """What they make of the stream is the answer and nothing else."""
    told(answering, dialect, name := f"helped, {dialect}")
    body = {key: value for key, value in request(dialect, name, 4).items() if key not in ("guardrails", "stream")}
    more: dict[str, Any] = {**body, "extra_body": {"guardrails": ["usual"]}}
    with Gate() as gate, script(answering, Gated(Words(), gate)):
        gate.let_through({"chat": 1, "messages": 0}[dialect])
        # Behind the first sign, whenever it comes, the provider goes on.
        seen = threading.Event()
        let = threading.Thread(target=go_on, args=(gate, seen))
        let.start()
        text = {"chat": chat_text, "messages": messages_text}[dialect](answering, more, seen)
        let.join()

    assert text == FINAL_WORDS


def go_on(gate: Gate, seen: threading.Event) -> None:
    """Let the answer through as soon as that is set."""
    seen.wait(30)
    gate.let_through(50)


def chat_text(gateway: Gateway, body: dict[str, Any], seen: threading.Event) -> Any:
    """The final text of the helper of chat; `seen` is set at its first event."""
    import openai

    client = openai.OpenAI(base_url=f"{gateway.proxy.url}/v1", api_key=gateway.proxy.key, max_retries=0)
    with client, client.chat.completions.stream(**body) as events:
        for _ in events:
            seen.set()
        return events.get_final_completion().choices[0].message.content


def messages_text(gateway: Gateway, body: dict[str, Any], seen: threading.Event) -> Any:
    """The same of messages, whose helper keeps pings to itself: the stream has begun when its headers are there."""
    import anthropic

    client = anthropic.Anthropic(base_url=gateway.proxy.url, api_key=gateway.proxy.key, max_retries=0)
    with client, client.messages.stream(**body) as events:
        seen.set()
        return events.get_final_text()
