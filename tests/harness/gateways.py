"""Proxies with and without the guard over one scripted upstream, started when a test first needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from litellm_toolguard.demo.agents import Run, ToolOutput, ToolSpec, run_agent
from litellm_toolguard.transcript import Dialect
from tests.harness.proxy import ProxyProcess, config, start_proxy
from tests.harness.upstream import ScriptedUpstream

KINDS: Mapping[Dialect, str] = {"chat": "native-chat", "messages": "native-messages", "responses": "native-chat"}
PATHS: Mapping[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
HISTORY: Mapping[Dialect, str] = {"chat": "messages", "messages": "messages", "responses": "input"}

# A callback of the test's own: what LiteLLM logs of every request, a line each.
RECORDER = """
import json, os
from litellm.integrations.custom_logger import CustomLogger

class Recorder(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.write("success", kwargs)

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        self.write("failure", kwargs)

    def write(self, status, kwargs):
        row = kwargs.get("standard_logging_object") or {}
        about = row.get("metadata") or {}
        kept = {"status": status, "information": row.get("guardrail_information"), "cost": row.get("response_cost")}
        kept |= {name: row.get(name) for name in ("id", "call_type", "model_group", "total_tokens")}
        kept |= {"key": about.get("user_api_key_hash"), "alias": about.get("user_api_key_alias")}
        kept |= {"call_id": kwargs.get("litellm_call_id"), "about": str(row.get("messages"))[:300]}
        if os.environ.get("RECORD_ALL"):
            kept["all"] = {"row": row, "error": kwargs.get("exception"), "sent": kwargs.get("litellm_params")}
        with open(os.environ["RECORDER_FILE"], "a") as file:
            file.write(json.dumps(kept, default=str) + "\\n")

recorder = Recorder()
"""


def tool(name: str, argument: str = "path") -> ToolSpec:
    """A tool with one required string argument."""
    properties = {argument: {"type": "string"}}
    return ToolSpec(name, f"A tool named {name}.", {"type": "object", "properties": properties, "required": [argument]})


READ_FILE = tool("read_file")
RUN = tool("bash", "command")


def guardrail(toolguard: Any = None, *, loaded: str = "litellm_toolguard.ToolGuard", **params: Any) -> dict[str, Any]:
    """A guardrail entry of a config."""
    own = {} if toolguard is None else {"toolguard": toolguard}
    base = {"guardrail": loaded, "mode": ["pre_call", "post_call"], "default_on": True}
    return {"guardrail_name": "toolguard", "litellm_params": {**base, **own, **params}}


@dataclass
class Gateway:
    """One proxy and what is behind it."""

    upstream: ScriptedUpstream
    proxy: ProxyProcess
    workdir: Path

    def run(self, dialect: Dialect, behaviour: str, *, stream: bool = False, kind: str = "", **options: Any) -> Run:
        """An agent run through the proxy with the official client; see `run_agent` for the options."""
        self.upstream.clear()
        return self.go_on(dialect, behaviour, stream=stream, kind=kind, **options)

    def go_on(self, dialect: Dialect, behaviour: str, *, stream: bool = False, kind: str = "", **options: Any) -> Run:
        """The same, without forgetting what the upstream recorded."""
        arguments: dict[str, Any] = {
            "tools": [READ_FILE],
            "execute": lambda name, _: ToolOutput(f"output of {name}"),
            "prompt": "Do it.",
            "max_requests": 14,
            **options,
        }
        model = f"{kind or KINDS[dialect]}/{behaviour}"
        return run_agent(
            dialect=dialect, stream=stream, base_url=self.proxy.url, api_key=self.proxy.key, model=model, **arguments
        )

    def post(self, dialect: Dialect, body: Mapping[str, Any]) -> httpx.Response:
        """One raw request."""
        headers = {"Authorization": f"Bearer {self.proxy.key}"}
        with httpx.Client(trust_env=False, timeout=60) as client:
            return client.post(f"{self.proxy.url}{PATHS[dialect]}", json=dict(body), headers=headers)

    def rows(self) -> list[dict[str, Any]]:
        """What LiteLLM logged so far; written behind the answers."""
        file = self.workdir / "rows.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass
class Gateways:
    """All proxies of a test session by name."""

    upstream: ScriptedUpstream
    folder: Path
    stack: ExitStack
    started: dict[str, Gateway] = field(default_factory=dict)

    def get(
        self,
        name: str,
        *,
        guardrails: list[dict[str, Any]] | None = None,
        callbacks: list[str] | None = None,
        files: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        general_settings: dict[str, Any] | None = None,
        router_settings: dict[str, Any] | None = None,
        litellm_settings: dict[str, Any] | None = None,
    ) -> Gateway:
        """The proxy of this name, started with the given config when it is first asked for."""
        if name not in self.started:
            workdir = self.folder / name
            workdir.mkdir()
            settings = {"callbacks": ["recorder.recorder", *(callbacks or [])], **(litellm_settings or {})}
            made = config(
                self.upstream.url,
                guardrails=guardrails,
                litellm_settings=settings,
                general_settings=general_settings,
                router_settings=router_settings,
            )
            variables = {"RECORDER_FILE": str(workdir / "rows.jsonl"), **(env or {})}
            started = start_proxy(
                made, workdir=workdir, files={"recorder.py": RECORDER, **(files or {})}, env=variables
            )
            self.stack.enter_context(started)
            self.started[name] = Gateway(self.upstream, started, workdir)
        return self.started[name]
