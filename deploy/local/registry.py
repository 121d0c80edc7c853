"""The embedded schema registry: Apicurio, used through its Confluent interface.

Owns <data_dir>/registry. Invariant: a returned schema id is on disk, because records carry it forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from highwater.deploy.local.errors import FetchError
from highwater.deploy.local.installed import install_root
from highwater.deploy.local.kafka import SMALL_HEAP, class_archive_options, java_program, scratch_options
from highwater.deploy.local.part import Part, property_value, server_environment
from highwater.deploy.local.private import make_folder, write_file
from highwater.deploy.local.process import Command

PORT_DEFAULT = 8081
MANAGEMENT_PORT_DEFAULT = 8181
API_PATH = "/apis/ccompat/v7"
HEAP_MB = 256
USER = "highwater"
# Producers from outside: they read schemas. That includes no search for a schema's id, which is a POST in this interface.
PRODUCER = "highwater-producer"
# Read by Quarkus from `config` below its working folder: a file, since passwords do not belong in the environment or
# the command line of a process.
ACCESS = f"""\
quarkus.http.insecure-requests=disabled
quarkus.http.ssl-port={{port}}
quarkus.http.ssl.certificate.files={{certificate}}
quarkus.http.ssl.certificate.key-files={{key}}
quarkus.http.auth.basic=true
quarkus.security.users.embedded.plain-text=true
quarkus.security.users.embedded.users.{USER}={{password}}
quarkus.security.users.embedded.roles.{USER}=sr-admin
quarkus.http.auth.permission.everything.paths=/*
quarkus.http.auth.permission.everything.policy=authenticated
quarkus.http.auth.permission.everything.auth-mechanism=basic
quarkus.security.users.embedded.users.{PRODUCER}={{producer_password}}
quarkus.security.users.embedded.roles.{PRODUCER}=sr-readonly
quarkus.http.auth.policy.operator.roles-allowed=sr-admin
quarkus.http.auth.permission.changes.paths=/*
quarkus.http.auth.permission.changes.methods=POST,PUT,PATCH,DELETE
quarkus.http.auth.permission.changes.policy=operator
quarkus.http.auth.permission.changes.auth-mechanism=basic
"""


class Registry(Part):
    """The schema registry; the address is the root of its Confluent interface."""

    name: ClassVar[str] = "schema_registry"
    _port = 0
    _management_port = 0

    @classmethod
    def folder_name(cls) -> str:
        """Return the name of its folder in the data folder."""
        return "registry"

    @property
    def address(self) -> str:
        """Return the root of the Confluent interface."""
        if self.certificates is None:
            return f"http://127.0.0.1:{self._port}{API_PATH}"
        return f"https://{USER}:{self.secrets.get(self.name)}@127.0.0.1:{self._port}{API_PATH}"

    @property
    def client_settings(self) -> Mapping[str, str]:
        """Return the authority of its certificate."""
        if self.certificates is None:
            return {}
        return {"SCHEMA_REGISTRY_SSL_CA_LOCATION": str(self.certificates.authority)}

    def take_ports(self) -> None:
        """Choose the interface's and the management port."""
        self._port = self.ports.take("schema_registry", PORT_DEFAULT)
        self._management_port = self.ports.take("schema_registry_management", MANAGEMENT_PORT_DEFAULT)

    def prepare(self) -> None:
        """Create the folder, and the list of users; the registry creates its own tables."""
        make_folder(self._properties_path().parent)
        if self.certificates is None:
            self._properties_path().unlink(missing_ok=True)
            return
        text = ACCESS.format(
            port=self._port,
            certificate=property_value(self.certificates.certificate(self.name)),
            key=property_value(self.certificates.key(self.name)),
            password=self.secrets.get(self.name),
            producer_password=self.secrets.get("kafka.producer"),
        )
        write_file(self._properties_path(), text)

    def command(self) -> Command:
        """Return how to run the registry."""
        jar = install_root() / "registry" / "quarkus-run.jar"
        if not jar.is_file():
            raise FetchError("the schema registry's files are not installed: run `make install`")
        # It answers a few requests a minute: without the optimizing compiler and a concurrent collector it starts with
        # half the processor time (7 s instead of 13 s).
        before = (*class_archive_options(self.name), *scratch_options(self.folder))
        # Given explicitly, since the folder that its web server would create is writable by everybody.
        cache = f"-Dvertx.cacheDirBase={self.folder / 'tmp' / 'cache'}"
        lean = ("-XX:TieredStopAtLevel=1", *SMALL_HEAP)
        options = (f"-Xmx{HEAP_MB}m", *lean, "-Djava.awt.headless=true", "--enable-native-access=ALL-UNNAMED")
        # WRITE_DELAY=0: otherwise H2 answers half a second before it writes, and a kill would lose a schema that
        # records already name.
        database = f"jdbc:h2:file:{self.folder / 'registry'};WRITE_DELAY=0"
        env = server_environment(
            QUARKUS_HTTP_HOST="127.0.0.1",
            QUARKUS_HTTP_PORT=str(self._port),
            QUARKUS_MANAGEMENT_HOST="127.0.0.1",
            QUARKUS_MANAGEMENT_PORT=str(self._management_port),
            APICURIO_STORAGE_KIND="sql",
            APICURIO_STORAGE_SQL_KIND="h2",
            APICURIO_DATASOURCE_URL=database,
            QUARKUS_BANNER_ENABLED="false",
        )
        return Command((java_program(), *before, cache, *options, "-jar", str(jar)), env=env, cwd=self.folder)

    def _properties_path(self) -> Path:
        return self.folder / "config" / "application.properties"
