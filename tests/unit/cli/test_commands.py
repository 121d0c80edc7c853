"""The conventions of the command line: exit status, one-line errors, plans and verdicts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from highwater.api.cli.bench import bench_names
from highwater.api.cli.checks import (
    bottleneck_verdict,
    clock_verdict,
    disk_verdict,
    migrations_verdict,
    replicas_verdict,
)
from highwater.api.cli.doctor import settings_rows
from highwater.api.cli.main import highwater
from highwater.api.cli.sql import sql
from highwater.api.cli.stack import greet, make_plan
from highwater.api.command.command import run_command
from highwater.api.command.connection import stack_line
from highwater.api.command.missing_topics import missing_error
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.resetting import Target, parse_target, place_in
from highwater.connectors.run import resolve_names
from highwater.deploy.local.brokers import settle_brokers
from highwater.deploy.local.errors import LocalStackError, PortTakenError
from highwater.deploy.local.supervisor import Plan
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import TOPICS, foreign_topic
from highwater.streams.printable import printable
from highwater.streams.processes import PROCESSES
from highwater.streams.settings import SETTINGS, read_settings

NOW_MS = 1_790_000_000_000


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HIGHWATER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", [(), *((name,) for name in highwater.commands), ("dlq", "list"), ("dlq", "edit")])
def test_every_command_has_help(path, capsys):
    """`--help` works everywhere and ends with 0."""
    assert run_command(highwater, [*path, "--help"]) == 0
    assert "Usage: highwater" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "there is no command 'nonsense'"),
        (["toppics"], "did you mean topics"),
        (["keys", "lists"], "did you mean list?"),
        (["publish"], "Missing argument"),
        (["backtest", "--policies"], "No such option"),
        (["backtest", "prompts"], "--prompt or --model"),
        (["backtest", "prompts", "--prompt", "Analyzer=x"], "other roles are not replayed"),
        (["backtest", "prompts", "--prompt", "Mentor=missing"], "holds no prompt"),
        (["describe", "feeds.insight-ingestd"], "did you mean feeds.insight-ingested"),
        (["tail", "feeds.insight-ingested", "-n", "3", "--from-beginning"], "exclude each other"),
        (["publish", "feeds.insight-ingested", "no-such-file"], "does not exist"),
        (["reset", "insights", "--to", "soon"], "neither earliest"),
        (["connect", "nonsense"], "there is no connector"),
        (["bench", "nonsense"], "there is no benchmark"),
        (["health"], "HIGHWATER_HEALTH_PORT"),
    ],
)
def test_wrong_use_is_one_line_and_two(arguments, said, capsys):
    """Wrong use ends with 2 and says so in one line on standard error."""
    assert run_command(highwater, arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.count("\n") == 1


def test_a_topic_that_is_missing_is_named_with_those_that_are_near():
    """It lists similar topics of the catalogue and of the broker, without Kafka's internal ones; our topic that was never
    created is named.
    """
    on_broker = ["orders-v1", "__orders-v2", "feeds.insight-ingested"]
    error = missing_error(foreign_topic("orders-v2"), on_broker)
    assert str(error) == "there is no topic 'orders-v2' on the broker; did you mean orders-v1?"
    assert "`highwater topics --all` lists the topics" in str(missing_error(foreign_topic("zzz"), on_broker))
    assert "run `highwater init`" in str(missing_error(TOPICS["feeds.user-active"], on_broker))


@pytest.mark.parametrize("text", ["-- the newest\nSELECT 1", "--\tSELECT 0\nSELECT 1", "SELECT 1"])
def test_a_query_may_begin_with_a_comment(text):
    """The comment is not taken for an option; an unknown option is still refused."""
    assert sql.make_context("sql", [text]).params["query"].strip() == text
    with pytest.raises(click.NoSuchOption):
        sql.make_context("sql", ["--tabels"])


def test_without_a_stack_one_line_says_how_to_start_one(capsys):
    """A command that needs an unknown service fails with 1 and names the setting."""
    assert run_command(highwater, ["lag"]) == 1
    said = capsys.readouterr().err
    assert "KAFKA_BOOTSTRAP_SERVERS" in said
    assert "highwater up" in said
    assert said.count("\n") == 1


def test_what_ended_a_group_of_tasks_is_named(capsys):
    """Each error in a group is listed once with its type, at any depth; "unhandled errors in a TaskGroup" alone is useless."""

    @click.command()
    def role():
        inner = ExceptionGroup("unhandled errors in a TaskGroup", [TimeoutError(), KeyError("gone"), KeyError("gone")])
        raise ExceptionGroup("unhandled errors in a TaskGroup", [inner, UnavailableError("Kafka is away")])

    group = click.Group(commands=[role])
    assert run_command(group, ["role"]) == 1
    said = capsys.readouterr().err
    assert "TimeoutError" in said
    assert said.count("KeyError: 'gone'") == 1
    assert "Kafka is away" in said
    assert "unhandled errors" not in said
    assert said.count("\n") == 1


def test_an_unknown_setting_is_wrong_use(monkeypatch, capsys):
    """An unknown HIGHWATER_ name stops the program with one line that names it."""
    monkeypatch.setenv("HIGHWATER_COLOUR", "red")
    assert run_command(highwater, ["lag"]) == 2
    assert "HIGHWATER_COLOUR" in capsys.readouterr().err


def test_down_without_a_stack_is_done(capsys):
    """Stopping a stack that does not run succeeds; `status` of it fails."""
    assert run_command(highwater, ["down", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"was_running": False, "data_dir": os.environ["HIGHWATER_DATA_DIR"]}
    assert run_command(highwater, ["status", "--json"]) == 1
    assert '"ready":false' in capsys.readouterr().out


def test_help_imports_no_client_library():
    """`--help` is quick because nothing of Kafka, HTTP or databases is imported for it."""
    heavy = "confluent_kafka", "httpx2", "asyncpg", "fastavro", "redis", "faust", "rich", "numpy"
    code = f"import sys, highwater.api.cli.main; print(*set({heavy!r}) & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


@pytest.mark.parametrize(("set_to", "threads"), [(None, 1), ("2", 2)])
def test_matrices_are_multiplied_by_one_thread(set_to, threads):
    """A process of the product has one BLAS thread, or as many as its environment says."""
    code = (
        "import atexit, highwater.api.cli.main as main, threadpoolctl as pools\n"
        "atexit.register(lambda: (__import__('numpy'), print({one['num_threads'] for one in pools.threadpool_info()})))\n"
        "main.sys.argv[1:] = ['--version']\n"
        "main.main()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment |= {} if set_to is None else {"OPENBLAS_NUM_THREADS": set_to}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == [f"{{{threads}}}"]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Target("earliest")),
        ("latest", Target("latest")),
        ("42", Target("offset", 42)),
        ("-90m", Target("time", NOW_MS - 5_400_000)),
        ("1970-01-01T00:00:01Z", Target("time", 1000)),
    ],
)
def test_targets_of_a_reset(text, target):
    """A target is a word, an offset, a time, or a time before now."""
    assert target == parse_target(text, NOW_MS)


@pytest.mark.parametrize("text", ["", "-1", "-1y", "soon", "\u0664\u0662"])
def test_what_is_no_target_is_refused(text):
    """Anything else is refused, digits of other scripts among it."""
    with pytest.raises(ValueError, match=r".*"):
        parse_target(text, NOW_MS)


def test_a_reset_stays_within_the_log():
    """An offset outside a partition becomes its nearest end; a time after its last record is its end."""
    held = LogRange(5, 9)
    assert [place_in(held, Target("earliest"), None), place_in(held, Target("latest"), None)] == [5, 9]
    assert [place_in(held, Target("offset", offset), None) for offset in (0, 7, 99)] == [5, 7, 9]
    assert [place_in(held, Target("time"), None), place_in(held, Target("time"), 6)] == [9, 6]


def test_control_characters_are_shown_not_obeyed():
    """Text from the log cannot move the cursor, change colours or turn the reading direction."""
    assert printable("\x1b[31mred\u202e é日") == "\\x1b[31mred\\u202e é日"


def test_verdicts_name_what_to_do():
    """Little disk, a moved or unreadable clock and missing migrations are findings with a remedy."""
    assert [disk_verdict(n << 30, Path("d")).state for n in (0, 2, 50)] == ["bad", "warning", "ok"]
    assert migrations_verdict({"a": "1"}, {"a": "1"}).state == "ok"
    assert migrations_verdict({"a": "1"}, {}).remedy == "`highwater init`"
    assert migrations_verdict({"a": "1"}, {"a": "2"}).state == "bad"
    assert migrations_verdict({}, {"a": "2"}).state == "warning"


def test_the_next_bottleneck_is_the_consumer_furthest_behind():
    """By seconds, among the running ones; the remedy is shown once it is noticeably behind."""
    assert bottleneck_verdict([]).detail == bottleneck_verdict([("users", 0, 0.0)]).detail
    near = bottleneck_verdict([("users", 900, 0.4), ("insights", 3, 0.9)])
    assert (near.detail, near.remedy) == ("consumer insights, the furthest behind: 3 events, 0.9 s", "")
    assert "`highwater connect rebuild`" in bottleneck_verdict([("rebuild", 70, 61.0), ("users", 900, 4.0)]).remedy
    assert "`highwater worker`" in bottleneck_verdict([("worker", 70, 6.0)]).remedy


@pytest.mark.parametrize(("text", "state"), [("0", "ok"), ("-3600", "warning"), ("soon", "bad"), (None, "warning")])
def test_the_clock_file_is_judged(text, state, tmp_path):
    """No offset is fine, an offset is reported, and an unreadable file is bad."""
    path = tmp_path / "clock"
    if text is not None:
        path.write_text(text)
    assert state == clock_verdict(path).state


def test_secrets_are_hidden():
    """The catalogue of settings shows values, and of secrets only that they are set."""
    rows = {row["name"]: row for row in settings_rows(read_settings({"LLM_API_KEY": "s3cret", "HIGHWATER_PORT": "1"}))}
    assert (rows["LLM_API_KEY"]["value"], rows["LLM_API_KEY"]["set"]) == ("(hidden)", True)
    assert (rows["HIGHWATER_PORT"]["value"], rows["REDIS_URL"]["value"]) == ("1", None)
    assert set(SETTINGS) == set(rows)


@pytest.mark.parametrize("setting", [None, "HIGHWATER_API_KEYS", "HIGHWATER_API_KEYS_FILE"])
def test_up_says_what_neighbours_can_reach(setting, monkeypatch, capsys):
    """Passwords are hidden on the screen; while no API keys are set one line says what others can use, and how to close it."""
    if setting:
        monkeypatch.setenv(setting, "admin:key")
    addresses = {"kafka": "127.0.0.1:9092", "schema_registry": "http://127.0.0.1:8081"}
    addresses |= {"database": "postgresql://u:s3cret@h/d", "redis": "redis://u:s3cret@h/0"}
    greet({"api": "http://127.0.0.1:8080", "data_dir": "d", "secure": False, "settings": {}, **addresses})
    told = capsys.readouterr()
    assert "s3cret" not in told.out + told.err
    assert "redis://u:***@h/0" in told.out
    assert ("Other users of this machine can use the API at http://127.0.0.1:8080" in told.err) is (setting is None)


def test_the_roles_run_every_connector():
    """The `connect` roles of `up` together are all connectors, none twice."""
    named = [n for arguments in PROCESSES.values() if arguments[0] == "connect" for n in resolve_names(arguments[1:])]
    assert sorted(resolve_names([])) == sorted(named)


def test_a_taken_port_is_refused_when_set_and_avoided_when_not(tmp_path):
    """If the port was set explicitly, a used one is an error; a used default port is replaced."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environment = {"HIGHWATER_PORT": port, "HIGHWATER_DATA_DIR": str(tmp_path)}
        settings = read_settings(environment)
        with pytest.raises(PortTakenError):
            make_plan(settings, environment)
        assert f":{port}" not in (make_plan(settings, {}).api_url or "")


def test_every_role_has_a_port_of_its_own(tmp_path):
    """Each role but the one-shot is asked at its own readyz, and knows the port it is asked at."""
    plan = make_plan(read_settings({"HIGHWATER_DATA_DIR": str(tmp_path)}), {})
    urls = [role.ready_url for role in plan.roles if not role.oneshot]
    assert len(urls) == len(set(urls)) == len(PROCESSES)
    assert [role.name for role in plan.roles if role.oneshot] == ["init"]


def test_several_processes_of_a_role_are_parts_of_their_own(tmp_path):
    """`--brokers 3 --workers 2`: two of each role but init and the API, each with a port and a name of its own."""
    settings = read_settings({"HIGHWATER_DATA_DIR": str(tmp_path)})
    plan = make_plan(settings, {}, brokers=3, workers=2)
    names = [role.name for role in plan.roles]
    several = [name.removeprefix("connect-") for name in PROCESSES if name != "api"]
    assert sorted(names) == sorted(["init", "api", *several, *(f"{name}-2" for name in several)])
    assert len({role.ready_url for role in plan.roles}) == len(names)
    assert {role.principal for role in plan.roles} == {None, *PROCESSES}
    for name in several:
        first, second = (next(role for role in plan.roles if role.name == one) for one in (name, f"{name}-2"))
        assert first.argv == second.argv
        assert first.env["HIGHWATER_HEALTH_PORT"] != second.env["HIGHWATER_HEALTH_PORT"]
    assert plan.brokers == 3
    assert Plan.from_json(plan.to_json()) == plan
    assert make_plan(settings, {}).brokers == 1


def test_a_folder_keeps_its_number_of_brokers(tmp_path):
    """One that has data is started with as many brokers as it was made with, and refuses another number."""
    settings = read_settings({"HIGHWATER_DATA_DIR": str(tmp_path)})
    settle_brokers(tmp_path, 3)
    assert make_plan(settings, {}, brokers=1).brokers == 1, "nothing was made yet"
    (tmp_path / "kafka_2" / "data").mkdir(parents=True)
    (tmp_path / "kafka_2" / "data" / "meta.properties").touch()
    assert make_plan(settings, {}).brokers == 3
    with pytest.raises(LocalStackError, match=r"was made with 3 brokers, which cannot become 1: leave out --brokers"):
        make_plan(settings, {}, brokers=1)
    with pytest.raises(LocalStackError, match="was made with 3 brokers"):
        settle_brokers(tmp_path, 1)


def test_a_folder_of_before_has_one_broker(tmp_path):
    """A folder without a note of how many has one."""
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    (tmp_path / "kafka" / "data" / "meta.properties").touch()
    with pytest.raises(LocalStackError, match="was made with 1 broker, which cannot become 3"):
        settle_brokers(tmp_path, 3)
    settle_brokers(tmp_path, 1)


def test_replicas_that_are_behind_are_said():
    """A partition with a replica out of sync is a warning with its number; none is well."""
    assert replicas_verdict([(3, 3), (1, 1)]).state == "ok"
    found = replicas_verdict([(3, 2), (3, 3), (3, 2)])
    assert (found.state, found.detail) == ("warning", "2 of 3 partitions have replicas that are not in sync")


def test_outside_a_checkout_there_are_no_benchmarks(tmp_path):
    """A folder without tests/bench has no benchmarks; a module without `run` is not a benchmark; names are typed with hyphens."""
    assert bench_names(tmp_path) == []
    folder = tmp_path / "tests" / "bench"
    folder.mkdir(parents=True)
    for name in ("__init__", "metrics"):
        (folder / f"{name}.py").write_text("def running():\n    pass\n")
    for name in ("ingest", "cluster_quality"):
        (folder / f"{name}.py").write_text("import json\n\n\ndef run(runs):\n    return []\n")
    assert bench_names(tmp_path) == ["cluster-quality", "ingest"]


# Each command that reads or writes a stack, with arguments that are right.
_OF_A_STACK = (
    ("ask", "0b0b0b0b-0b0b-4b0b-8b0b-0b0b0b0b0b0b", "why?"),
    ("backtest", "--from", "-1d"),
    ("backtest", "prompts", "--model", "other"),
    ("chunks", "search", "--ns", "docs", "why?"),
    ("chunks", "lifecycle"),
    ("chunks", "show", "i1"),
    ("dlq", "list"),
    ("explain", "feed", "ada"),
    ("jobs", "show", "0b0b0b0b-0b0b-4b0b-8b0b-0b0b0b0b0b0b"),
    ("jobs", "watch", "0b0b0b0b-0b0b-4b0b-8b0b-0b0b0b0b0b0b"),
    ("health", "--api"),
    ("lag",),
    ("publish", "feeds.user-active", "-"),
    ("replay", "feeds.user-active"),
    ("tail", "feeds.user-active"),
    ("describe", "feeds.user-active"),
    ("topics", "--all"),
    ("topics", "feeds.user-active"),
    ("groups",),
    ("schemas",),
    ("verify",),
)


@pytest.mark.parametrize("arguments", _OF_A_STACK, ids=" ".join)
def test_no_stack_is_guessed(arguments, capsys, monkeypatch):
    """If no stack runs in the folder and no setting names one, a command says so and sends no request."""
    asked: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _socket, address: asked.append(address))
    assert run_command(highwater, list(arguments)) == 1
    told = capsys.readouterr()
    assert "no local stack runs in" in told.err, told.err
    assert "`highwater up` starts" in told.err
    assert (told.err.count("\n"), asked) == (1, [])


def test_which_stack_a_command_speaks_to():
    """Folder and addresses in one line, without passwords."""
    addresses = {"Kafka": "k:9092", "PostgreSQL": "postgresql://u:secret@h/d"}
    assert stack_line(addresses) == "stack: Kafka k:9092, PostgreSQL postgresql://u:***@h/d"
    assert stack_line({"API": "http://h:1"}, Path("/x")) == "stack: the local stack in /x, API http://h:1"
