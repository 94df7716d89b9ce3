#!/usr/bin/env python3
"""Peers of `sidecore bench bulk` in Python: what people use today.

Says `ready`, then does its work once for each line of input and answers with one JSON object a line. Time
is taken around the work and its synchronisation; opening, allocating and importing are not timed.

    kvikio[:threads=N,task=BYTES,direct=1]   KvikIO, which must be installed
    cufile[:threads=N,task=BYTES]            NVIDIA's libcufile, called by N threads; without nvidia-fs in its
                                             compatibility mode
    safetensors                              load_file of a safetensors file made of the file's bytes
    torch                                    torch.load of the same
    numpy                                    np.fromfile, or a memmap gather; to the GPU where torch has one
"""

import argparse
import concurrent.futures
import ctypes
import glob
import json
import os
import sys
import tempfile
import time

def options(text):
    name, _, rest = text.partition(":")
    return name, dict(pair.split("=") for pair in rest.split(",") if pair)


def size(text):
    units = {"k": 10, "m": 20, "g": 30}
    return int(text[:-1]) << units[text[-1].lower()] if text[-1].lower() in units else int(text)


def row_order(rows, count):
    import numpy

    return numpy.random.default_rng(1).permutation(rows)[:count]


class KvikIO:
    def __init__(self, args, values):
        os.environ.setdefault("KVIKIO_COMPAT_MODE", "AUTO")
        os.environ["KVIKIO_NTHREADS"] = values.get("threads", "1")
        os.environ["KVIKIO_TASK_SIZE"] = str(size(values.get("task", "4m")))
        if values.get("direct"):
            os.environ["KVIKIO_AUTO_DIRECT_IO_READ"] = "1"
        import cupy
        import kvikio

        self.kvikio, self.cupy, self.args = kvikio, cupy, args
        self.futures = values.get("futures") == "1"
        if args.work == "files":
            self.bytes = args.count * args.each
        elif args.work == "rows":
            self.bytes = args.count * args.each
            self.rows = row_order(os.path.getsize(args.file) // args.each, args.count)
        else:
            self.bytes = os.path.getsize(args.file)
        self.target = cupy.zeros(self.bytes, dtype="u1")

    def run(self):
        args, moved = self.args, 0
        if args.work == "read":
            with self.kvikio.CuFile(args.file, "r") as file:
                moved = file.read(self.target)
        elif args.work == "write":
            with self.kvikio.CuFile(args.file, "r+") as file:
                moved = file.write(self.target)
        elif args.work == "files":
            for index in range(args.count):
                part = self.target[index * args.each : (index + 1) * args.each]
                with self.kvikio.CuFile(f"{args.file}/{index}", "r") as file:
                    moved += file.read(part)
        else:
            with self.kvikio.CuFile(args.file, "r") as file:
                ended = []
                for index, row in enumerate(self.rows):
                    part = self.target[index * args.each : (index + 1) * args.each]
                    future = file.pread(part, args.each, int(row) * args.each)
                    if self.futures:
                        ended.append(future)
                    else:
                        moved += future.get()
                moved += sum(future.get() for future in ended)
        self.cupy.cuda.runtime.deviceSynchronize()
        return moved


class CuFile:
    """libcufile and the driver, by ctypes: no package is needed."""

    class Error(ctypes.Structure):
        _fields_ = [("error", ctypes.c_int), ("cuda", ctypes.c_int)]

    class Description(ctypes.Structure):
        _fields_ = [("kind", ctypes.c_int), ("fd", ctypes.c_int64), ("operations", ctypes.c_void_p)]

    def __init__(self, args, values):
        self.args = args
        self.threads, self.task = int(values.get("threads", "1")), size(values.get("task", "4m"))
        # Without nvidia-fs it works in its compatibility mode only, which must be allowed.
        self.settings = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump({"properties": {"allow_compat_mode": True}}, self.settings)
        self.settings.flush()
        os.environ.setdefault("CUFILE_ENV_PATH_JSON", self.settings.name)
        os.environ.setdefault("CUFILE_FORCE_COMPAT_MODE", "true")
        self.cuda, self.cufile = ctypes.CDLL("libcuda.so.1"), self.library()
        for name in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister"):
            getattr(self.cufile, name).restype = self.Error
        for name in ("cuFileRead", "cuFileWrite"):
            function = getattr(self.cufile, name)
            function.restype = ctypes.c_ssize_t
            long, pointer = ctypes.c_int64, ctypes.c_void_p
            function.argtypes = [pointer, pointer, ctypes.c_size_t, long, long]
        self.context, self.target = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver("cuInit", 0)
        self.driver("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.driver("cuCtxSetCurrent", self.context)
        many = args.work in ("rows", "files")
        self.bytes = args.count * args.each if many else os.path.getsize(args.file)
        self.driver("cuMemAlloc_v2", ctypes.byref(self.target), ctypes.c_size_t(self.bytes))
        self.driver("cuMemsetD8_v2", self.target, 1, ctypes.c_size_t(self.bytes))
        self.own("cuFileDriverOpen")
        self.own("cuFileBufRegister", self.target, ctypes.c_size_t(self.bytes), 0)
        if args.work == "rows":
            self.rows = row_order(os.path.getsize(args.file) // args.each, args.count)
        self.pool = concurrent.futures.ThreadPoolExecutor(
            self.threads, initializer=lambda: self.driver("cuCtxSetCurrent", self.context)
        )

    @staticmethod
    def library():
        folders = ["/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"]
        folders += [f"{folder}/nvidia/*/lib" for folder in sys.path]
        found = [path for folder in folders for path in glob.glob(f"{folder}/libcufile.so.0")]
        for path in ["libcufile.so.0", *found]:
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                why = error
        raise SystemExit(f"no libcufile here: {why}")

    def driver(self, name, *values):
        status = getattr(self.cuda, name)(*values)
        if status:
            raise OSError(f"{name}: error {status} of CUDA")

    def own(self, name, *values):
        result = getattr(self.cufile, name)(*values)
        if result.error:
            raise OSError(f"{name}: error {result.error} of libcufile, {result.cuda} of CUDA")

    def open(self, path, flags):
        fd = os.open(path, flags)
        handle, description = ctypes.c_void_p(), self.Description(1, fd, None)
        try:
            self.own("cuFileHandleRegister", ctypes.byref(handle), ctypes.byref(description))
        except OSError:
            os.close(fd)
            raise
        return fd, handle

    def close(self, opened):
        self.cufile.cuFileHandleDeregister(opened[1])
        os.close(opened[0])

    def share(self, thread, opened):
        """What one thread does: every so many-th piece."""
        args, moved = self.args, 0
        function = self.cufile.cuFileWrite if args.work == "write" else self.cufile.cuFileRead
        each = args.each if args.work in ("rows", "files") else self.task
        for piece in range(thread, -(-self.bytes // each), self.threads):
            at, own = piece * each, opened
            if args.work == "files":
                own = self.open(f"{args.file}/{piece}", os.O_RDONLY)
            source = {"rows": lambda: int(self.rows[piece]) * each, "files": lambda: 0}
            offset = source.get(args.work, lambda: at)()
            count = function(own[1], self.target, min(each, self.bytes - at), offset, at)
            if args.work == "files":
                self.close(own)
            if count < 0:
                raise OSError(f"{function.__name__}: {count}")
            moved += count
        return moved

    def run(self):
        flags, opened = os.O_RDWR if self.args.work == "write" else os.O_RDONLY, None
        if self.args.work != "files":
            opened = self.open(self.args.file, flags)
        shares = [self.pool.submit(self.share, thread, opened) for thread in range(self.threads)]
        moved = sum(share.result() for share in shares)
        if opened:
            self.close(opened)
        self.driver("cuCtxSynchronize")
        return moved


class Torch:
    """torch.load, or safetensors' load_file, of a file with the same bytes in 256 tensors."""

    def __init__(self, args, kind):
        import torch

        self.torch, self.kind = torch, kind
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.bytes = os.path.getsize(args.file)
        self.path = f"{args.file}.{kind}"
        whole = torch.from_file(args.file, size=self.bytes, dtype=torch.uint8)
        each = self.bytes // 256
        state = {f"t{i}": whole[i * each : (i + 1) * each].clone() for i in range(256)}
        if kind == "torch":
            torch.save(state, self.path)
        else:
            import safetensors.torch

            safetensors.torch.save_file(state, self.path)
        self.first = state["t0"][:4096].clone()

    def run(self):
        if self.kind == "torch":
            state = self.torch.load(self.path, map_location=self.device)
        else:
            import safetensors.torch

            state = safetensors.torch.load_file(self.path, device=self.device)
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        assert (state["t0"][:4096].cpu() == self.first).all(), "other bytes"
        return sum(tensor.numel() for tensor in state.values())

    def finish(self):
        os.remove(self.path)


class NumPy:
    def __init__(self, args, values):
        import numpy

        self.numpy, self.args = numpy, args
        self.warm = values.get("warm") == "1"
        self.mapping = None
        try:
            import torch

            self.torch = torch if torch.cuda.is_available() else None
        except ImportError:
            self.torch = None
        if args.work == "rows":
            self.rows = row_order(os.path.getsize(args.file) // args.each, args.count)

    def run(self):
        numpy, args = self.numpy, self.args
        if args.work == "read":
            data = numpy.fromfile(args.file, dtype="u1")
        elif args.work == "files":
            names = (f"{args.file}/{index}" for index in range(args.count))
            data = numpy.concatenate([numpy.fromfile(name, dtype="u1") for name in names])
        elif args.work == "rows":
            mapping = self.mapping
            if mapping is None or not self.warm:
                rows = os.path.getsize(args.file) // args.each
                mapping = numpy.memmap(args.file, mode="r", dtype="u1", shape=(rows, args.each))
            self.mapping = mapping
            data = mapping[self.rows]
        else:
            raise SystemExit("numpy does not write here")
        if self.torch:
            self.torch.from_numpy(data).cuda()
            self.torch.cuda.synchronize()
        return data.nbytes


def open_peer(args):
    name, values = options(args.be)
    if name == "kvikio":
        return KvikIO(args, values)
    if name == "cufile":
        return CuFile(args, values)
    if name in ("safetensors", "torch"):
        return Torch(args, name)
    if name == "numpy":
        return NumPy(args, values)
    raise SystemExit(f"no peer is named {name}")


def drop_pages(path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--be", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--each", type=int, default=0)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    peer = open_peer(args)
    print("ready", args.be, flush=True)
    for _ in sys.stdin:
        if args.cold and os.path.isfile(args.file):
            drop_pages(args.file)
        begin = time.perf_counter()
        wrong, moved = None, 0
        try:
            moved = int(peer.run())
        except Exception as error:  # told, not hidden
            wrong = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "bytes": moved, "wrong": wrong}), flush=True)
    getattr(peer, "finish", lambda: None)()


if __name__ == "__main__":
    main()
