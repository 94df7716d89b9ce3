//! Runs the real binary in a directory of its own, and looks at what it leaves there.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// No run of these tests takes longer.
const LIMIT: Duration = Duration::from_secs(120);
/// A user without rights.
const NOBODY: u32 = 65534;

/// Runs its arguments under a filter that answers EPERM to the three calls of io_uring, as the
/// default profile of containers does. Source: Linux, Documentation/userspace-api/seccomp_filter.rst.
const REFUSE_IO_URING: &str = r"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
step = lambda code, true, false, value: struct.pack('HBBI', code, true, false, value)
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
program = ctypes.create_string_buffer(
    step(LOAD, 0, 0, 0) + step(EQUAL, 2, 0, 425) + step(EQUAL, 1, 0, 426) + step(EQUAL, 0, 1, 427)
    + step(RETURN, 0, 0, 0x00050001) + step(RETURN, 0, 0, 0x7fff0000))
class Program(ctypes.Structure):
    _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
filter = Program(6, ctypes.addressof(program))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(filter)) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// A directory that is working directory and temporary directory of the runs in it.
pub struct Sandbox {
    folder: TempDir,
}

/// A run under way.
pub struct Running {
    child: Child,
}

impl Sandbox {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path().join(name), content).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).unwrap()
    }

    pub fn make_unreadable(&self, name: &str) {
        fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }

    /// Names of all files there, sorted.
    pub fn listing(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command.args(line.split_whitespace());
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command
            .current_dir(self.path())
            .env("TMPDIR", self.path())
            .env("XDG_RUNTIME_DIR", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    pub fn start(&self, line: &str) -> Running {
        Running { child: self.command(line).spawn().unwrap() }
    }

    pub fn run(&self, line: &str) -> Output {
        self.start(line).wait()
    }

    /// Runs it where the kernel refuses io_uring; nothing where there is no Python to refuse it by.
    pub fn run_without_io_uring(&self, line: &str) -> Option<Output> {
        let mut command = Command::new("python3");
        command.args(["-c", REFUSE_IO_URING, env!("CARGO_BIN_EXE_sidecore")]);
        command.args(line.split_whitespace());
        self.prepare(&mut command);
        let child = command.spawn().ok()?;
        Some(Running { child }.wait())
    }

    /// Runs what must be refused, and looks that nothing is left behind.
    pub fn refuses(&self, line: &str, words: &[&str]) {
        self.refuses_from(self.command(line), line, words);
    }

    /// The same, as a user without rights where the test's own has all.
    pub fn refuses_as_nobody(&self, line: &str, words: &[&str]) {
        let mut command = self.command(line);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        self.refuses_from(command, line, words);
    }

    /// The same, where `FULL` names a file system of `size` of which `used` bytes are taken.
    pub fn refuses_on_small_disk(&self, line: &str, size: &str, used: u64, words: &[&str]) {
        let full = self.path().join("FULL");
        fs::create_dir_all(&full).unwrap();
        let line = line.replace("FULL", full.to_str().unwrap());
        let script = format!(
            "mount -t tmpfs -o size={size} none {full} && head -c {used} /dev/zero > {full}/filler; \
             before=$(ls -A {full}); {sidecore} {line}; code=$?; \
             [ \"$before\" = \"$(ls -A {full})\" ] || echo LEFT: $(ls -A {full}) >&2; exit $code",
            full = full.display(),
            sidecore = env!("CARGO_BIN_EXE_sidecore"),
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
        self.prepare(&mut command);
        let words: Vec<String> =
            words.iter().map(|word| word.replace("FULL", full.to_str().unwrap())).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.refuses_from(command, &line, &words);
    }

    fn refuses_from(&self, mut command: Command, line: &str, words: &[&str]) {
        let before = self.listing();
        let output = Running { child: command.spawn().unwrap() }.wait();
        assert_refused(line, &output, words);
        assert_eq!(self.listing(), before, "`{line}` left something behind");
    }
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Waits for its end, at most [`LIMIT`].
    pub fn wait(mut self) -> Output {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if start.elapsed() > LIMIT {
                self.child.kill().unwrap();
                panic!("a run took longer than {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.wait_with_output().unwrap()
    }
}

/// Looks that a run was refused as it should be.
pub fn assert_refused(line: &str, output: &Output, words: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(
        code.is_some_and(|code| code != 0 && code != 101),
        "`{line}` ended with {code:?}\n{errors}"
    );
    for word in words {
        assert!(errors.contains(word), "`{line}` does not name `{word}`:\n{errors}");
    }
    assert!(!errors.contains("LEFT:"), "`{line}` left something behind:\n{errors}");
    assert!(!errors.contains("panicked"), "`{line}` panicked:\n{errors}");
}

/// Self-describing bytes.
pub fn pattern_file(bytes: usize, generation: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    storage::pattern::fill(&mut content, 0, generation);
    content
}
