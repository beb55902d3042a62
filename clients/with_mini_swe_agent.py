"""mini-SWE-agent: its default agent in a folder whose `make test` is the tool with the side effect."""

import os
import sys
from pathlib import Path

# Before it is imported: it reads its settings then.
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] = "1"

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from seen import tell


def run(_api: str, _form: str) -> str:
    """Run the agent to its end; gives its exit status and its last words."""
    lines = Path(os.environ["LINES"])
    (lines.parent / "Makefile").write_text(f"test:\n\t@echo notes.txt >> {lines.name}\n\t@echo passed\n")
    shipped = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text(encoding="utf-8"))["model"]
    model = LitellmModel(
        format_error_template=shipped["format_error_template"],
        model_name=f"openai/{os.environ['MODEL']}",
        model_kwargs={"api_base": f"{os.environ['GATEWAY']}/v1", "api_key": os.environ["GATEWAY_KEY"]},
        cost_tracking="ignore_errors",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=str(lines.parent)),
        system_template="You are a helper.",
        instance_template="{{task}}",
        step_limit=12,
    )
    result = agent.run("Do it.")
    raise RuntimeError(f"{result.get('exit_status')}, at the end of {len(agent.messages)} messages")


tell("mini-swe-agent", lambda: run(sys.argv[1], sys.argv[2]))
