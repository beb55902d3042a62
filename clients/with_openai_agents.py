"""The OpenAI Agents SDK: an agent with one tool, as its documentation shows it."""

import asyncio
import os
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from seen import executed, tell


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    executed(path)
    return "x = 1"


async def run(api: str, form: str) -> str:
    """Run the agent to its end; gives the words of the user."""
    client = AsyncOpenAI(base_url=f"{os.environ['GATEWAY']}/v1", api_key=os.environ["GATEWAY_KEY"], max_retries=0)
    kinds = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
    model = kinds[api](model=os.environ["MODEL"], openai_client=client)
    agent = Agent(name="Reader", instructions="Read what is asked for.", model=model, tools=[read_file])
    if form == "whole":
        return str((await Runner.run(agent, "Do it.", max_turns=12)).final_output)
    streamed = Runner.run_streamed(agent, "Do it.", max_turns=12)
    async for _ in streamed.stream_events():
        pass
    return str(streamed.final_output)


set_tracing_disabled(disabled=True)
tell("openai-agents", lambda: asyncio.run(run(sys.argv[1], sys.argv[2])))
