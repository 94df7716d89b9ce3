//! Every combination of file offset, memory offset and length modulo a page, by O_DIRECT or not, hot or cold,
//! at the file's end or not, on each file system that can be had here.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use bulk::{Access, CachePolicy, Options, Route};
use common::{Guarded, drop_pages, engine, make, quiet};
use storage::pattern::mix;

const FILE_BYTES: u64 = (3 << 20) + 777;
/// Cases of each cell.
const CASES: u64 = 64;

/// A file system that tests may use.
struct Place {
    name: &'static str,
    path: PathBuf,
    /// What is unmounted at the end.
    mounts: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            let _left = Command::new("umount").arg(mount).status();
        }
    }
}

fn ran(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    let why = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {why}")) }
}

fn folder(parent: &str) -> Result<tempfile::TempDir, String> {
    tempfile::tempdir_in(parent).map_err(|e| format!("{parent}: {e}"))
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn plain(name: &'static str, parent: &str) -> Result<Place, String> {
    let folder = folder(parent)?;
    Ok(Place { name, path: folder.path().to_owned(), mounts: Vec::new(), _folder: folder })
}

/// A file system in a file, mounted by a loop device.
fn looped(name: &'static str, tool: &str, options: &[&str], bytes: u64) -> Result<Place, String> {
    let folder = folder(env!("CARGO_TARGET_TMPDIR"))?;
    let (image, path) = (folder.path().join("image"), folder.path().join("mount"));
    std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
    std::fs::create_dir(&path).unwrap();
    let mut arguments = options.to_vec();
    let image = text(&image);
    arguments.push(&image);
    ran(tool, &arguments)?;
    ran("mount", &["-o", "loop", &image, &text(&path)])?;
    Ok(Place { name, mounts: vec![path.clone()], path, _folder: folder })
}

fn overlay() -> Result<Place, String> {
    let folder = folder(env!("CARGO_TARGET_TMPDIR"))?;
    let [lower, upper, work, path] = ["lower", "upper", "work", "mount"].map(|name| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    });
    let [lower, upper, work] = [lower, upper, work].map(|path| text(&path));
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    ran("mount", &["-t", "overlay", "overlay", "-o", &options, &text(&path)])?;
    Ok(Place { name: "overlayfs", mounts: vec![path.clone()], path, _folder: folder })
}

/// Bytes that this process has had read from drives.
fn read_from_drives() -> u64 {
    let books = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = books.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.unwrap().parse().unwrap()
}

/// A cell of the grid: what its cases have in common.
#[derive(Clone, Copy, Debug)]
struct Cell {
    direct: bool,
    cold: bool,
    end: bool,
    device: bool,
}

impl Cell {
    const ALL: usize = 16;

    fn new(index: usize) -> Self {
        let bit = |at: usize| index >> at & 1 == 1;
        Self { direct: bit(0), cold: bit(1), end: bit(2), device: bit(3) }
    }
}

/// Reads the cases of a cell; the bytes that went around the page cache.
fn run(path: &Path, cell: Cell) -> u64 {
    let cache = if cell.direct { CachePolicy::Direct } else { CachePolicy::Auto };
    let (bulk, gpu) = engine(Options { cache, ..quiet() });
    let file = bulk.open_file(path, Access::Read).unwrap();
    const MODULO: [u64; 4] = [0, 1, 512, 4095];
    for case in 0..CASES {
        // All 64 combinations of three offsets modulo a page; the rest by chance.
        let [a, b, c] =
            [case % 4, case / 4 % 4, case / 16].map(|at| MODULO[usize::try_from(at).unwrap()]);
        let dice = mix(case * 97 + u64::from(cell.direct));
        let pages = 1 + dice % 3 + if case % 16 == 5 { 300 } else { 0 };
        let bytes = usize::try_from(pages * 4096 + c).unwrap();
        let offset = match cell.end {
            true => FILE_BYTES / 4096 * 4096 - (dice >> 20) % 4 * 4096 + a,
            false => (dice >> 8) % 400 * 4096 + a,
        };
        if cell.cold {
            drop_pages(path, 0, 0);
        }
        let target = Guarded::new(cell.device.then_some(&gpu), usize::try_from(b).unwrap(), bytes);
        let moved = bulk.read(&file, offset, target.place()).unwrap();
        let there = FILE_BYTES.saturating_sub(offset).min(bytes as u64);
        assert_eq!(moved, there, "{cell:?} {offset}+{bytes}");
        target.check(offset, usize::try_from(there).unwrap(), 9);
    }
    let counters = bulk.counters();
    [Route::StagedDirect, Route::HostDirect].map(|r| counters.route(r).bytes_read).iter().sum()
}

#[test]
fn every_alignment_on_every_file_system() {
    let places = [
        plain("tmpfs", "/dev/shm"),
        plain("disk", env!("CARGO_TARGET_TMPDIR")),
        looped("ext4 (loop)", "mkfs.ext4", &["-q", "-F"], 64 << 20),
        looped("xfs (loop)", "mkfs.xfs", &["-q"], 320 << 20),
        overlay(),
    ];
    let mut ran = Vec::new();
    for place in places {
        let place = match place {
            Ok(place) => place,
            Err(why) => {
                println!("not here: {why}");
                continue;
            }
        };
        let path = place.path.join("data");
        make(&path, FILE_BYTES, 9);
        for cell in (0..Cell::ALL).map(Cell::new) {
            std::fs::read(&path).unwrap();
            let before = read_from_drives();
            let direct = run(&path, cell);
            let from_drives = read_from_drives() - before;
            println!("{}: {cell:?}: {CASES} cases, {direct} bytes direct", place.name);
            if place.name == "tmpfs" {
                assert_eq!(direct, 0);
            } else if cell.direct && !cell.end {
                assert!(direct > 0, "{}", place.name);
                assert!(from_drives >= direct, "{from_drives} from drives, {direct} said to be");
            }
        }
        ran.push(place.name);
    }
    println!("ran on {}", ran.join(", "));
    assert!(ran.len() >= 2);
}
