"""The console script `toolguard`.

Exit codes: 0 all is well, 1 a demo or a report did not come out as it should, 2 bad input.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from litellm_toolguard.config import POLICY_VARIABLE, check_file
from litellm_toolguard.errors import ConfigError
from litellm_toolguard.policy_reading import load_policy_file, policy_schema

if TYPE_CHECKING:
    from litellm_toolguard.withheld_cli import WithheldCommands

EXIT_BAD_INPUT: Final = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="litellm-toolguard", prog_name="toolguard")
def main() -> None:
    """Stops runaway agents at a LiteLLM gateway."""


@main.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a policy and leave.")
def check(file: Path | None, schema: bool) -> None:
    """Check FILE, a policy or a LiteLLM config: say ok, or name every error with its path (exit code 2)."""
    if schema:
        click.echo(json.dumps(policy_schema(), indent=2))
        return
    if file is None:
        raise click.UsageError("give the FILE to check, or --schema")
    callback = os.environ.get(POLICY_VARIABLE)
    try:
        report = check_file(file, Path(callback) if callback else None)
    except ConfigError as error:
        raise _bad_config(error) from error
    for remark in report.remarks:
        click.echo(f"{file}: note: {remark}")
    click.echo(f"{file}: ok")


def _bad_config(error: ConfigError) -> SystemExit:
    """Says every problem; what is to be raised then."""
    for problem in error.problems:
        click.echo(f"{error.source}: {problem}", err=True)
    return SystemExit(EXIT_BAD_INPUT)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Judge by this policy file.")
@click.option("--labels", type=click.Path(path_type=Path), help="Compare with these labels (JSONL: id, label, ...).")
@click.option("--format", "output", type=click.Choice(["text", "json", "jsonl"]), default="text", show_default=True)
@click.option(
    "--fail-on",
    type=click.Choice(["stop", "hint"]),
    help="Exit code 1 at an intervention that ends the run (stop, reject, block, ask), or at any.",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes; one per CPU unless given.")
def replay(
    files: tuple[Path, ...],
    policy_file: Path | None,
    labels: Path | None,
    output: Literal["text", "json", "jsonl"],
    fail_on: Literal["stop", "hint"] | None,
    jobs: int | None,
) -> None:
    """Say what the guard would have done over the recorded conversations in FILES (JSON or JSONL, also gzipped).

    Reads request bodies of Chat Completions, Anthropic Messages and Responses, transcript records, spend-log rows with
    bodies, the session files of Claude Code and Codex, and recordings of a proxy (`record:` in its policy), which must
    replay to the decisions that it made. Exit code 1: something could not be read, or --fail-on; 2: a
    bad policy.
    """
    from litellm_toolguard.replay import Options, run_replay

    try:
        policy = load_policy_file(policy_file) if policy_file is not None else None
    except ConfigError as error:
        raise _bad_config(error) from error
    raise SystemExit(run_replay(files, policy, Options(output, labels, fail_on, jobs)))


@main.group()
@click.option("--ledger", type=click.Path(path_type=Path), help="The ledger's file.")
@click.option("--config", type=click.Path(path_type=Path), help="A policy or LiteLLM config that names the ledger.")
@click.pass_context
def withheld(context: click.Context, ledger: Path | None, config: Path | None) -> None:
    """Tool results that are withheld from every provider, and their originals.

    Exit code 2: the ledger cannot be read, or there is no such result.
    """
    from litellm_toolguard.withheld_cli import WithheldCommands, ledger_of

    if (ledger is None) == (config is None):
        raise click.UsageError("give --ledger or --config")
    try:
        named = (ledger, None) if ledger is not None else ledger_of(config or Path())
        context.obj = WithheldCommands(*named)
    except ConfigError as error:
        raise _bad_config(error) from error


_FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


@withheld.command("list")
@_FORMAT_OPTION
@click.pass_obj
def withheld_list(commands: WithheldCommands, output: Literal["text", "json"]) -> None:
    """List what was withheld, the newest first. Prints no content."""
    raise SystemExit(commands.list(output))


@withheld.command("show")
@click.argument("entry_id", metavar="ID")
@_FORMAT_OPTION
@click.pass_obj
def withheld_show(commands: WithheldCommands, entry_id: str, output: Literal["text", "json"]) -> None:
    """Print one result with its ORIGINAL content. The beginning of an ID is enough."""
    raise SystemExit(commands.show(entry_id, output))


@withheld.command("release")
@click.argument("entry_id", metavar="ID")
@click.pass_obj
def withheld_release(commands: WithheldCommands, entry_id: str) -> None:
    """Let a result pass again, from the next request on."""
    raise SystemExit(commands.release(entry_id))


@withheld.command("purge")
@click.pass_obj
def withheld_purge(commands: WithheldCommands) -> None:
    """Drop the originals that are older than the retention allows, and give the space back."""
    raise SystemExit(commands.purge())


@main.command()
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def demo(output: Literal["text", "json"]) -> None:
    """Run looping and healthy agents through two real proxies, unguarded and guarded, and compare (10 to 60 seconds).

    Needs no key and no network. Exit code 1: a run did not end as it should.
    """
    from litellm_toolguard.demo.signals import Signals

    with Signals() as signals:
        from litellm_toolguard.demo.run import run_demo

        code = run_demo(output, signals)
    raise SystemExit(code)
