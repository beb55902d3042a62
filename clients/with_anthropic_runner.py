"""The Anthropic SDK's tool runner. `thread=False`: the guard reads the history that a request carries."""

import os
import sys

from anthropic import Anthropic, beta_tool
from seen import executed, tell


@beta_tool
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: its path.
    """
    executed(path)
    return "x = 1"


def run(_api: str, form: str) -> str:
    """Run the tool runner to its end; gives the words of the user."""
    client = Anthropic(base_url=os.environ["GATEWAY"], api_key=os.environ["GATEWAY_KEY"], max_retries=0)
    runner = client.beta.messages.tool_runner(
        model=os.environ["MODEL"],
        max_tokens=1024,
        max_iterations=12,
        messages=[{"role": "user", "content": "Do it."}],
        tools=[read_file],
        stream=form == "streamed",
        thread=False,
    )
    for each in runner:
        message = each.get_final_message() if form == "streamed" else each
    if message.stop_reason == "tool_use":
        raise RuntimeError("the cap of 12 requests")
    return "".join(block.text for block in message.content if block.type == "text")


tell("anthropic", lambda: run(sys.argv[1], sys.argv[2]))
