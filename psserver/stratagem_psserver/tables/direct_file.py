"""A file on a local disk that is read and written past the system's page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
READ_BYTES = 2 << 20
"""As much as is read at once: more makes the queue longer, and no disk faster."""

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# The numbers of io_setup, io_destroy, io_submit and io_getevents, for which Python has no calls.
# Hundreds of reads by them take a third of the processor that as many threads take, or as many
# calls of posix_fadvise and pread.
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}.get(platform.machine())
_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_ONCE = 256

# The kernel's iocb and io_event; an opcode of 0 reads.
_REQUEST = np.dtype(
    {
        "names": ["file", "place", "nbytes", "offset"],
        "formats": [np.uint32, np.uint64, np.uint64, np.int64],
        "offsets": [20, 24, 32, 40],
        "itemsize": 64,
    }
)
_EVENT = np.dtype([("data", "u8"), ("request", "u8"), ("result", "i8"), ("more", "i8")])


def aligned(nbytes: int) -> Bytes:
    """Return memory that begins with a page, as direct reads and writes need it."""
    return np.frombuffer(mmap.mmap(-1, nbytes, PRIVATE), np.uint8)


class DirectFile:
    """A file that has no name, and ends with the process.

    Args:
        folder: The folder that decides on which disk it is.
    """

    def __init__(self, folder: str) -> None:
        number, path = tempfile.mkstemp(dir=folder, prefix="stratagem-table-")
        try:
            self.number = os.open(path, os.O_RDWR | os.O_DIRECT)
            os.close(number)
        except OSError:
            # A file system without direct access.
            self.number = number
        finally:
            os.unlink(path)
        # At the end of the process threads may still write, and must not find another file there.
        weakref.finalize(self, os.close, self.number).atexit = False
        self.nbytes = 0

    def grow(self, nbytes: int) -> None:
        """Take room on the disk.

        Raises:
            OSError: There is none; nothing has changed.
        """
        os.posix_fallocate(self.number, self.nbytes, nbytes - self.nbytes)
        self.nbytes = nbytes

    def write(self, offset: int, data: Bytes) -> None:
        """Write whole pages from memory that is `aligned`.

        Raises:
            OSError: The disk could not.
        """
        rest = memoryview(data.data)
        while rest:
            done = os.pwrite(self.number, rest, offset)
            rest, offset = rest[done:], offset + done


class ReadQueue:
    """Many reads at once; for one thread at a time."""

    def __init__(self) -> None:
        self._memory = aligned(READ_BYTES)
        self._context = ctypes.c_ulong(0)
        self._threads: ThreadPoolExecutor | None = None
        if not self._begin():
            self._threads = ThreadPoolExecutor(16, thread_name_prefix="table-read")
        weakref.finalize(self, self._end, self._context).atexit = False

    def _begin(self) -> bool:
        if _CALLS is None:
            return False
        setup = _LIBC.syscall(_CALLS[0], ctypes.c_uint(_AT_ONCE), ctypes.byref(self._context))
        return bool(setup == 0)

    @staticmethod
    def _end(context: ctypes.c_ulong) -> None:
        """Wait for all reads, and let go of the queue."""
        if context.value and _CALLS is not None:
            _LIBC.syscall(_CALLS[1], context)
            context.value = 0

    def read(self, file: DirectFile, offsets: Integers, sizes: Integers) -> Bytes:
        """Read spans of whole pages.

        Args:
            file: The file.
            offsets: Where they begin.
            sizes: Their bytes, together about `READ_BYTES` at most.

        Returns:
            The bytes of all spans one after the other, until the next call.

        Raises:
            OSError: The disk could not read them.
        """
        places = np.cumsum(sizes) - sizes
        total = int(places[-1] + sizes[-1])
        if total > len(self._memory):
            self._memory = aligned(total)
        if self._threads is not None:
            each = zip(repeat(file.number), offsets.tolist(), places.tolist(), sizes.tolist())
            list(self._threads.map(self._read_one, each))
        else:
            try:
                self._read_all(file.number, offsets, places, sizes)
            except BaseException:
                # Nothing may be read into memory that others have by then.
                self._end(self._context)
                self._begin()
                raise
        return self._memory[:total]

    def _read_one(self, span: tuple[int, int, int, int]) -> None:
        number, offset, place, nbytes = span
        into = memoryview(self._memory.data)[place : place + nbytes]
        if os.preadv(number, [into], offset) != nbytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _read_all(self, number: int, offsets: Integers, places: Integers, sizes: Integers) -> None:
        assert _CALLS is not None
        requests, events = np.zeros(len(offsets), _REQUEST), np.zeros(len(offsets), _EVENT)
        requests["file"], requests["offset"], requests["nbytes"] = number, offsets, sizes
        requests["place"] = places + self._memory.ctypes.data
        pointers = requests.ctypes.data + np.arange(len(offsets)) * _REQUEST.itemsize
        asked = came = 0
        while came < len(offsets):
            if more := min(len(offsets) - asked, _AT_ONCE - (asked - came)):
                begin = ctypes.c_void_p(pointers.ctypes.data + asked * pointers.itemsize)
                asked += self._call(_CALLS[2], ctypes.c_long(more), begin)
            begin = ctypes.c_void_p(events.ctypes.data + came * _EVENT.itemsize)
            least = min(1, asked - came) if asked < len(offsets) else asked - came
            counts = ctypes.c_long(least), ctypes.c_long(asked - came)
            came += self._call(_CALLS[3], *counts, begin, None)
        if (failed := events["result"][events["result"] < 0]).size:
            raise OSError(-int(failed[0]), os.strerror(-int(failed[0])))
        if int(events["result"].sum()) != int(sizes.sum()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _call(self, number: int, *arguments: object) -> int:
        done: int = _LIBC.syscall(number, self._context, *arguments)
        if done < 0:
            if (failed := ctypes.get_errno()) in (errno.EINTR, errno.EAGAIN):
                return 0
            raise OSError(failed, os.strerror(failed))
        return done
