"""The devices that strategies of this process may use."""

from stratagem._core.device_names import list_logical_devices, set_logical_cpus, set_logical_gpus

__all__ = ["list_logical_devices", "set_logical_cpus", "set_logical_gpus"]
