"""Clock and energy of the GPU through NVML, opened at run time. Values are None if
NVML or a figure is not available."""

import ctypes

NVML_CLOCK_SM = 1


class Nvml:
    """One GPU. `uuid` is PyTorch's ("GPU-..." or bare); without it, the first one."""

    def __init__(self, uuid=None, library="libnvidia-ml.so.1"):
        self.handle = None
        try:
            self.lib = ctypes.CDLL(library)
            if self.lib.nvmlInit_v2() != 0:
                return
        except (OSError, AttributeError):
            return
        handle = ctypes.c_void_p()
        name = str(uuid or "")
        if name and not name.startswith("GPU-"):
            name = "GPU-" + name
        found = -1
        if name:
            found = self.lib.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        if found != 0:
            found = self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
        if found == 0:
            self.handle = handle

    def _read(self, function, kind, *arguments):
        if self.handle is None:
            return None
        value = kind()
        try:
            status = getattr(self.lib, function)(self.handle, *arguments, ctypes.byref(value))
        except AttributeError:
            return None
        return value.value if status == 0 else None

    def clock_mhz(self):
        return self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_uint(NVML_CLOCK_SM))

    def joules(self):
        """The energy since the driver was loaded."""
        millijoules = self._read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        return None if millijoules is None else millijoules / 1e3

    def power_limit_w(self):
        milliwatts = self._read("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return None if milliwatts is None else milliwatts / 1e3

    def driver(self):
        if self.handle is None:
            return None
        text = ctypes.create_string_buffer(96)
        status = self.lib.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text)))
        return text.value.decode() if status == 0 else None
