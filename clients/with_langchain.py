"""LangChain: an agent with one tool over ChatOpenAI."""

import os
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from seen import executed, tell


@tool
def read_file(path: str) -> str:
    """Read a file."""
    executed(path)
    return "x = 1"


def run(api: str, form: str) -> str:
    """Run the agent to its end; gives the words of the user."""
    model = ChatOpenAI(
        base_url=f"{os.environ['GATEWAY']}/v1",
        api_key=os.environ["GATEWAY_KEY"],
        model=os.environ["MODEL"],
        max_retries=0,
        streaming=form == "streamed",
        use_responses_api=api == "responses",
    )
    agent = create_agent(model, tools=[read_file])
    asked = {"messages": [{"role": "user", "content": "Do it."}]}
    # Two steps of the graph are one round: the model and the tool.
    return str(agent.invoke(asked, {"recursion_limit": 24})["messages"][-1].text)


tell("langchain", lambda: run(sys.argv[1], sys.argv[2]))
