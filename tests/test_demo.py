"""The demo as its users run it, and the config at the top level, which it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import litellm_toolguard
from litellm_toolguard.cli import main
from litellm_toolguard.demo import run as demo_run
from litellm_toolguard.demo.agents import AgentDialect, run_agent
from litellm_toolguard.demo.environment import client_environment, proxy_environment
from litellm_toolguard.demo.process import ProxyProcess
from litellm_toolguard.demo.scenarios import CAP, GUARDS, SCENARIOS, Guard, Row, Scenario, wrong_rows
from litellm_toolguard.demo.scripts import MODELS
from litellm_toolguard.demo.signals import Interrupted, Signals
from litellm_toolguard.demo.workshop import APPEND_LINE, Workshop
from litellm_toolguard.notes import END_PREFIX
from tests.harness.proxy import unused_port

PACKAGE = Path(litellm_toolguard.__file__).parent
CONFIG = Path(__file__).parents[1] / "litellm_config.yaml"

NOBODY = "127.0.0.1:9"
# A shell that would lead the demo's proxies and clients somewhere else.
SHELL = {
    "HTTP_PROXY": f"http://{NOBODY}",
    "https_proxy": f"http://{NOBODY}",
    "ALL_PROXY": f"http://{NOBODY}",
    "NO_PROXY": "example.org",
    "OPENAI_API_KEY": "sk-shell",
    "OPENAI_BASE_URL": f"http://{NOBODY}",
    "ANTHROPIC_AUTH_TOKEN": "shell",
    "ANTHROPIC_BASE_URL": f"http://{NOBODY}",
    "DATABASE_URL": f"postgresql://{NOBODY}/shell",
    "LITELLM_MASTER_KEY": "sk-shell",
    "REDIS_URL": f"redis://{NOBODY}",
    "CONFIG_FILE_PATH": "nowhere.yaml",
    "SSL_KEYFILE_PATH": "nowhere.pem",
}


@contextmanager
def demo(folder: Path, *options: str, path: str = "") -> Iterator[subprocess.Popen[str]]:
    """A running `toolguard demo` that keeps its temporary files in `folder`.

    Args:
        path: stands first on the path that modules are imported from.
    """
    paths = [path, str(PACKAGE.parent)] if path else [str(PACKAGE.parent)]
    with subprocess.Popen(
        [sys.executable, "-c", "from litellm_toolguard.cli import main; main(prog_name='toolguard')", "demo", *options],
        cwd=folder,
        env={**os.environ, **SHELL, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(folder: Path, *options: str, path: str = "") -> tuple[int, str, str]:
    """Exit code, output and errors of a demo that ends by itself."""
    with demo(folder, *options, path=path) as process:
        output, errors = process.communicate()
        return process.returncode, output, errors


def left_behind(folder: Path) -> list[str]:
    """The command lines of processes, and the files, that a demo has left; its proxies' configs lie in `folder`."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    processes = [line for line in listed.splitlines() if str(folder) in line]
    return processes + [path.name for path in folder.glob("toolguard-demo-*")]


# (observed, enforced) as (requests, executed, ended)
ENDS = {
    "looping-agent": ((CAP, CAP, "cap"), (5, 4, "guard")),
    "learning-agent": ((CAP, CAP, "cap"), (4, 3, "model")),
    "denied-agent": ((CAP, CAP, "cap"), (7, 6, "guard")),
    "healthy-agent": ((13, 12, "model"), (13, 12, "model")),
}


@pytest.mark.proxy
def test_the_demo_shows_what_the_guard_does(tmp_path: Path) -> None:
    """Every model is there, every run ends as it should, and nothing stays behind."""
    code, output, errors = finished(tmp_path)

    assert (code, [model for model in MODELS if model not in output], "wrong" in errors) == (0, [], False), errors
    assert "… `append_line` was called 4 times" in output
    assert left_behind(tmp_path) == []


@pytest.mark.proxy
def test_its_rows_can_be_read_by_programs(tmp_path: Path) -> None:
    """Each agent in its dialect, observed and enforced, with the words its user read."""
    code, output, errors = finished(tmp_path, "--format", "json")
    rows = json.loads(output)

    assert code == 0, errors
    assert [(row["requests"], row["executed"], row["ended"]) for row in rows] == [
        end for scenario in SCENARIOS for end in ENDS[scenario.model]
    ]
    assert [(row["model"], row["dialect"], row["stream"], row["guard"]) for row in rows] == [
        (scenario.model, scenario.dialect, scenario.stream, guard) for scenario in SCENARIOS for guard in GUARDS
    ]
    assert {row["dialect"] for row in rows} == {"chat", "messages", "responses"}
    assert {row["text"].startswith(END_PREFIX) for row in rows if row["ended"] == "guard"} == {True}


@pytest.mark.proxy
@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        pytest.param(signal.SIGINT, 130, "Starting", id="interrupted while it starts"),
        pytest.param(signal.SIGTERM, 143, "Starting", id="terminated while it starts"),
        pytest.param(signal.SIGHUP, 129, "Starting", id="left while it starts"),
        # Once, because all signals come by one handler, and it takes a whole start.
        pytest.param(signal.SIGINT, 130, MODELS[0], id="interrupted while it runs"),
    ],
)
def test_a_signal_ends_the_demo_and_its_proxies(tmp_path: Path, number: signal.Signals, code: int, moment: str) -> None:
    """No process and no file stays, whenever it comes; nothing is printed any more."""
    with demo(tmp_path) as process:
        assert process.stderr is not None
        assert any(line.startswith(moment) for line in process.stderr)
        assert len(left_behind(tmp_path)) == len(GUARDS) + 1
        process.send_signal(number)
        output, errors = process.communicate()

    assert (process.returncode, output, "Traceback" in errors) == (code, "", False), errors
    assert left_behind(tmp_path) == []


@pytest.mark.proxy
def test_a_proxy_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    """The cause stands in the last lines of the log."""
    broken = tmp_path / "broken" / "litellm"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken on purpose')\n", encoding="utf-8")
    code, output, errors = finished(tmp_path, path=str(broken.parent))

    assert (code, output, "Traceback" in errors.splitlines()[0]) == (1, "", False)
    assert "the proxy exited with 1:" in errors
    assert errors.rstrip().endswith("RuntimeError: broken on purpose")
    assert left_behind(tmp_path) == []


@pytest.fixture(scope="module")
def config_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """The config at the top level with the package's folder beside it, as in a checkout, and no master key."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / CONFIG.name).write_bytes(CONFIG.read_bytes())
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    # As in a shell: `litellm` itself puts the working directory on the path.
    env = {"PYTHONPATH": ""}
    with ProxyProcess(folder / CONFIG.name, port=unused_port(), key="sk-any", env=env) as proxy:
        proxy.wait_until_ready()
        yield proxy


@pytest.mark.proxy
@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_config_at_the_top_level_guards(
    config_proxy: ProxyProcess, tmp_path: Path, dialect: AgentDialect, stream: bool
) -> None:
    """It runs without a key and without a network, and stops a loop."""
    workshop = Workshop(tmp_path)
    workshop.open()
    run = run_agent(
        dialect=dialect,
        stream=stream,
        base_url=config_proxy.url,
        api_key=config_proxy.key,
        model="looping-agent",
        tools=[APPEND_LINE],
        execute=workshop.execute,
        prompt="Do it.",
    )

    assert (run.ended, run.requests, workshop.executed(), run.text.startswith(END_PREFIX)) == ("words", 5, 4, True)
    assert run.toolguard is not None
    assert {name: run.toolguard[name] for name in ("action", "detector", "count")} == {
        "action": "stop",
        "detector": "repeated-call",
        "count": 5,
    }


def test_the_config_at_the_top_level_is_the_one_that_the_demo_runs() -> None:
    """There are no two copies of it in the repository, and the guard's own check passes."""
    assert demo_run.config_text() == CONFIG.read_text(encoding="utf-8")

    assert CliRunner().invoke(main, ["check", str(CONFIG)]).output == f"{CONFIG}: ok\n"


def test_without_the_extra_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, no traceback."""
    monkeypatch.setattr(demo_run, "_NEEDED", ("json", "uvicorn", "anthropic"))
    monkeypatch.setitem(sys.modules, "anthropic", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(main, ["demo"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "The demo needs uvicorn, anthropic: install litellm-toolguard[proxy].\n"


# What the rows must say


def row(scenario: Scenario, guard: Guard) -> Row:
    """The row of a run that went as it should."""
    expected = scenario.observed if guard == "observe" else scenario.enforced
    return Row(
        model=scenario.model,
        dialect=scenario.dialect,
        stream=scenario.stream,
        guard=guard,
        requests=expected.most + 1,
        executed=expected.most,
        ended=expected.ended,
        text="some words",
        folder=(("notes.txt", "some text\n"),),
    )


RIGHT = [row(scenario, guard) for scenario in SCENARIOS for guard in GUARDS]


def changed(index: int, change: Callable[[Row], Row]) -> list[Row]:
    """The right rows, one of them changed."""
    return [change(row) if number == index else row for number, row in enumerate(RIGHT)]


def test_rows_as_they_should_be_are_right() -> None:
    assert wrong_rows(RIGHT) == []


@pytest.mark.parametrize(
    ("index", "change", "line"),
    [
        (
            0,
            lambda row: replace(row, ended="guard", executed=4),
            "looping-agent, chat, observe: ended by guard after 4 executions, not by cap after 16",
        ),
        (
            1,
            lambda row: replace(row, executed=5),
            "looping-agent, chat, enforce: ended by guard after 5 executions, not by guard after 1 to 4",
        ),
        (
            7,
            lambda row: replace(row, executed=4),
            "learning-agent, messages, enforce: ended by model after 4 executions, not by model after 3",
        ),
        (
            9,
            lambda row: replace(row, ended="error", executed=0),
            "denied-agent, responses, enforce: ended by error after 0 executions, not by guard after 1 to 6",
        ),
        (
            11,
            lambda row: replace(row, text="other words"),
            "healthy-agent, chat, enforce: the guard changed a run that it should leave alone",
        ),
        (
            11,
            lambda row: replace(row, folder=()),
            "healthy-agent, chat, enforce: the guard changed a run that it should leave alone",
        ),
    ],
    ids=["observed but ended", "ended late", "told late", "failed", "other words", "other files"],
)
def test_a_wrong_row_is_named(
    monkeypatch: pytest.MonkeyPatch, index: int, change: Callable[[Row], Row], line: str
) -> None:
    """By a line of its own, behind the table, and by the exit code."""
    rows = changed(index, change)
    monkeypatch.setattr(demo_run, "_NEEDED", ())
    monkeypatch.setattr(demo_run, "_all_rows", lambda _: rows)
    result = CliRunner().invoke(main, ["demo"])

    assert (result.exit_code, result.stderr) == (1, f"wrong: {line}\n")
    assert rows[index].model in result.stdout


# Signals


def test_a_signal_waits_until_it_can_be_served() -> None:
    """A process that is being started is not lost, and a process that is being stopped is stopped."""
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted) as raised, signals.interruptible():
            pytest.fail("went on after a signal")

    assert raised.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_what_may_be_interrupted_once() -> None:
    """A second one does not end the tidying up."""
    with Signals() as signals:
        with pytest.raises(Interrupted) as raised, signals.interruptible():
            signal.raise_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    assert raised.value.exit_code == 130


# Environments


def test_a_proxy_gets_nothing_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what Python needs, and what keeps LiteLLM from the network."""
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    environment = proxy_environment({"LITELLM_MASTER_KEY": "sk-own"})

    assert set(SHELL) & set(environment) == {"NO_PROXY", "LITELLM_MASTER_KEY"}
    assert (environment["NO_PROXY"], environment["LITELLM_MASTER_KEY"]) == ("127.0.0.1,localhost", "sk-own")
    assert environment["LITELLM_LOCAL_MODEL_COST_MAP"] == environment["LITELLM_TELEMETRY_DISABLED"] == "True"


def test_clients_get_nothing_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """While they run; then everything is as before."""
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with client_environment():
        inside = {name for name in SHELL if name.startswith(("OPENAI", "ANTHROPIC")) or name.lower().endswith("_proxy")}
        seen = inside & set(os.environ), os.environ["NO_PROXY"]

    assert seen == ({"NO_PROXY"}, "127.0.0.1,localhost")
    assert dict(os.environ) == before
