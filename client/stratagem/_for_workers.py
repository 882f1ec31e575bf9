"""What worker servers use of the client: these names, and nothing else of it."""

from stratagem._core.contexts import clear_remains, on_worker
from stratagem._core.device_names import list_logical_devices
from stratagem._core.waiting import Guard, guarded_by
from stratagem._ps_client.names import running
from stratagem._ps_client.write_behind import Backlog, SentWrite, WritesBehind
from stratagem._remote_kinds import KINDS
from stratagem._shipping.import_allowlist import AnyCode, LoadableCode, NamedCode
from stratagem._shipping.kinds import WorkerTask
from stratagem._shipping.loader import Loader
from stratagem._shipping.outcome_forms import PLAIN, OutcomeForm, form_for
from stratagem._shipping.pickling import words_of
from stratagem._worker_client.link import this_runtime

__all__ = [
    "KINDS",
    "PLAIN",
    "AnyCode",
    "Backlog",
    "Guard",
    "LoadableCode",
    "Loader",
    "NamedCode",
    "OutcomeForm",
    "SentWrite",
    "WorkerTask",
    "WritesBehind",
    "clear_remains",
    "form_for",
    "guarded_by",
    "list_logical_devices",
    "on_worker",
    "running",
    "this_runtime",
    "words_of",
]
